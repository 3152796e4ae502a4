"""Llama and Mistral (transformers LlamaForCausalLM, MistralForCausalLM): pre-norm, GQA, SwiGLU.

Mistral differs in one point: a `sliding_window` that, when not null, holds for every layer.
"""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field

from plow.errors import ConfigError
from plow.graph import Graph
from plow.models.blocks import ACTIVATIONS, Attention, Norm, pre_norm
from plow.models.config import WHERE, FamilyConfig
from plow.models.rope_config import Rope, single_rope


class LlamaConfig(FamilyConfig):
    """`tie_word_embeddings` absent means false, as in transformers; the weight check confirms it."""

    SOURCE: ClassVar[str] = "LlamaForCausalLM"
    hidden_act: str
    tie_word_embeddings: bool = False
    mlp_bias: bool = False

    @classmethod
    def with_derived(cls, kept: dict[str, Any]) -> dict[str, Any]:
        """Absent or null num_key_value_heads means num_attention_heads; absent or null head_dim means
        hidden_size / num_attention_heads, an error when that is no integer. The projections' shapes confirm both."""
        kept, heads, hidden = dict(kept), kept.get("num_attention_heads"), kept.get("hidden_size")
        if kept.get("num_key_value_heads") is None and isinstance(heads, int):
            kept["num_key_value_heads"] = heads
        if kept.get("head_dim") is None and isinstance(heads, int) and isinstance(hidden, int) and heads > 0:
            if hidden % heads:
                raise ConfigError(
                    f"field 'head_dim' is missing and hidden_size {hidden} is no multiple of {heads} heads",
                    WHERE,
                    "add head_dim",
                )
            kept["head_dim"] = hidden // heads
        return kept

    def check(self) -> None:
        if self.hidden_act not in ACTIVATIONS:
            raise ConfigError(
                f"hidden_act = {self.hidden_act!r} is not supported", WHERE, f"supported: {', '.join(ACTIVATIONS)}"
            )

    def rope(self) -> Rope:
        return single_rope(self.rope_theta, self.rope_scaling, self.rope_parameters)


class MistralConfig(LlamaConfig):
    """`sliding_window` must be present: transformers assumes 4096 when it is absent, which files rarely mean."""

    SOURCE: ClassVar[str] = "MistralForCausalLM"
    MUST_BE: ClassVar[dict[str, tuple[tuple[Any, ...], str]]] = FamilyConfig.MUST_BE | {
        "attention_bias": ((False,), "MistralForCausalLM has no bias"),
        "mlp_bias": ((False,), "MistralForCausalLM has no bias"),
    }
    sliding_window: int | None = Field(gt=0)


def build_llama(config: dict[str, Any]) -> Graph:
    return _build(LlamaConfig.parse(config), config, 0)


def build_mistral(config: dict[str, Any]) -> Graph:
    c = MistralConfig.parse(config)
    return _build(c, config, c.sliding_window or 0)


def _build(c: LlamaConfig, raw: dict[str, Any], window: int) -> Graph:
    """hidden: [T, hidden_size]; one output, "logits": [S, vocab_size]."""
    norm = Norm(c.rms_norm_eps)
    attention = Attention.of(c, c.rope(), window=window, bias=c.attention_bias)
    return pre_norm(c, raw, attention, norm, ACTIVATIONS[c.hidden_act], c.mlp_bias)

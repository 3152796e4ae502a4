"""Gemma 3 text models (transformers Gemma3ForCausalLM).

Against Llama: zero-centred norms before AND after each half of a block, per-head q/k norms, embeddings scaled by
sqrt(hidden_size), attention scale from query_pre_attn_scalar, tanh-GELU, and two layer types: sliding-window layers
with a local RoPE base, full layers with a global one.
"""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field

from plow.errors import ConfigError
from plow.graph import Graph, verify
from plow.models.blocks import ACTIVATIONS, Attention, Builder, Norm, embedding, gated_mlp, head
from plow.models.config import WHERE, FamilyConfig
from plow.models.rope_config import Rope, read_rope

SLIDING, FULL = "sliding_attention", "full_attention"


class Gemma3Config(FamilyConfig):
    """`layer_types` may be given as `sliding_window_pattern` = n instead: every n-th layer is full. head_dim and
    num_key_value_heads have no derivation. `tie_word_embeddings` absent means true, as in transformers."""

    SOURCE: ClassVar[str] = "Gemma3ForCausalLM"
    MUST_BE: ClassVar[dict[str, tuple[tuple[Any, ...], str]]] = FamilyConfig.MUST_BE | {
        "attn_logit_softcapping": ((None,), "Gemma3ForCausalLM does not apply it"),
        "use_bidirectional_attention": ((False, None), "attention is causal"),
    }
    SPELLINGS: ClassVar[dict[str, str]] = {"_sliding_window_pattern": "sliding_window_pattern"}
    hidden_activation: str
    query_pre_attn_scalar: float = Field(gt=0)
    sliding_window: int = Field(gt=0)
    layer_types: list[str]
    sliding_window_pattern: int | None = Field(None, gt=0)
    rope_local_base_freq: float | None = Field(None, gt=0)
    final_logit_softcapping: float | None = Field(None, gt=0)
    tie_word_embeddings: bool = True

    def check(self) -> None:
        if self.hidden_activation not in ACTIVATIONS:
            raise ConfigError(
                f"hidden_activation = {self.hidden_activation!r} is not supported",
                WHERE,
                f"supported: {', '.join(ACTIVATIONS)}",
            )
        unknown = sorted(set(self.layer_types) - {SLIDING, FULL})
        if unknown:
            raise ConfigError(f"layer_types has {unknown[0]!r}", WHERE, f"supported: {SLIDING}, {FULL}")
        if len(self.layer_types) != self.num_hidden_layers:
            raise ConfigError(
                f"layer_types has {len(self.layer_types)} entries for {self.num_hidden_layers} layers",
                WHERE,
                "correct the field",
            )
        pattern = self.sliding_window_pattern
        if pattern is not None and self.layer_types != layer_types(self.num_hidden_layers, pattern):
            raise ConfigError(
                f"layer_types and sliding_window_pattern = {pattern} disagree", WHERE, "keep layer_types only"
            )

    def ropes(self) -> dict[str, Rope]:
        """layer type -> Rope. Old configs scale the full layers only (`rope_scaling`); new ones nest by layer type."""
        if self.rope_parameters is None:
            return {
                FULL: read_rope(self.rope_scaling, self.rope_theta, "rope_scaling"),
                SLIDING: read_rope(
                    {"rope_theta": self._required("rope_local_base_freq")}, None, "rope_local_base_freq"
                ),
            }
        if self.rope_scaling is not None:
            raise ConfigError("rope_scaling and rope_parameters are both given", WHERE, "keep rope_parameters only")
        unknown = sorted(set(self.rope_parameters) - {FULL, SLIDING})
        if unknown:
            raise ConfigError(
                f"rope_parameters has {unknown[0]!r}", WHERE, f"Gemma 3 nests it by layer type: {FULL}, {SLIDING}"
            )
        outer = {FULL: self.rope_theta, SLIDING: self.rope_local_base_freq}
        return {
            kind: read_rope(self.rope_parameters.get(kind), outer[kind], f"rope_parameters.{kind}")
            for kind in (FULL, SLIDING)
        }

    def _required(self, name: str) -> Any:
        value = getattr(self, name)
        if value is None:
            raise ConfigError(f"field {name!r} is missing", WHERE, f"add it: {self.SOURCE} cannot be built without it")
        return value

    @classmethod
    def with_derived(cls, kept: dict[str, Any]) -> dict[str, Any]:
        kept, pattern, layers = dict(kept), kept.get("sliding_window_pattern"), kept.get("num_hidden_layers")
        if kept.get("layer_types") is None and isinstance(pattern, int) and isinstance(layers, int) and pattern > 0:
            kept["layer_types"] = layer_types(layers, pattern)
        return kept


def layer_types(num_layers: int, pattern: int) -> list[str]:
    """Every pattern-th layer is full: transformers Gemma3TextConfig.__post_init__."""
    return [SLIDING if (i + 1) % pattern else FULL for i in range(num_layers)]


def build_gemma3(config: dict[str, Any]) -> Graph:
    """hidden: [T, hidden_size]; one output, "logits": [S, vocab_size]."""
    c = Gemma3Config.parse(config)
    b, norm, hidden = Builder(), Norm(c.rms_norm_eps, zero_centered=True), c.hidden_size
    ropes = c.ropes()
    attentions = [
        Attention(
            hidden,
            c.num_attention_heads,
            c.num_key_value_heads,
            c.head_dim,
            c.query_pre_attn_scalar**-0.5,
            ropes[kind],
            norm,
            c.sliding_window if kind == SLIDING else 0,
            c.attention_bias,
        )
        for kind in c.layer_types
    ]
    x = embedding(b, c.vocab_size, hidden, hidden**0.5)
    for i, attention in enumerate(attentions):
        b.scope, prefix = f"layer.{i}", f"model.layers.{i}"

        def apply_norm(part: str, value: str, prefix: str = prefix) -> str:
            return norm(b, part, value, f"{prefix}.{part}.weight", hidden)

        h = attention(b, apply_norm("input_layernorm", x), f"{prefix}.self_attn")
        x = b.op("attention_residual", "add", x, apply_norm("post_attention_layernorm", h))
        h = gated_mlp(
            b,
            apply_norm("pre_feedforward_layernorm", x),
            f"{prefix}.mlp",
            hidden,
            c.intermediate_size,
            ACTIVATIONS[c.hidden_activation],
        )
        x = b.op("mlp_residual", "add", x, apply_norm("post_feedforward_layernorm", h))
    head(b, x, norm, c.vocab_size, hidden, c.tie_word_embeddings, c.final_logit_softcapping or 0.0)
    caches = [a.cache(f"layer.{i}") for i, a in enumerate(attentions)]
    return verify(b.graph(c.meta(config, caches)))

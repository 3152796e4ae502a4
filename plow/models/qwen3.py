"""Qwen3 dense models (transformers Qwen3ForCausalLM): the Llama block with per-head RMSNorm on q and k before RoPE."""

from __future__ import annotations

from typing import Any, ClassVar

from plow.errors import ConfigError
from plow.graph import Graph
from plow.models.blocks import ACTIVATIONS, Attention, Norm, pre_norm
from plow.models.config import IGNORED, WHERE, FamilyConfig
from plow.models.rope_config import single_rope

FULL = "full_attention"
WINDOWED = "transformers reads it with use_sliding_window only, which must be false"


class Qwen3Config(FamilyConfig):
    """head_dim and num_key_value_heads have no derivation: transformers assumes 128 and 32, whatever the geometry.
    `tie_word_embeddings` absent means false, as in transformers."""

    SOURCE: ClassVar[str] = "Qwen3ForCausalLM"
    IGNORED: ClassVar[dict[str, str]] = IGNORED | {"sliding_window": WINDOWED, "max_window_layers": WINDOWED}
    MUST_BE: ClassVar[dict[str, tuple[tuple[Any, ...], str]]] = FamilyConfig.MUST_BE | {
        "attention_bias": ((False,), "no published Qwen3 model has a bias"),
        "use_sliding_window": ((False,), "every layer sees all positions"),
    }
    hidden_act: str
    layer_types: list[str] | None = None

    def check(self) -> None:
        if self.hidden_act not in ACTIVATIONS:
            raise ConfigError(
                f"hidden_act = {self.hidden_act!r} is not supported", WHERE, f"supported: {', '.join(ACTIVATIONS)}"
            )
        if self.layer_types is not None and self.layer_types != [FULL] * self.num_hidden_layers:
            raise ConfigError(
                f"layer_types has {len(self.layer_types)} entries of {sorted(set(self.layer_types))}",
                WHERE,
                f"supported: {FULL} for each of the {self.num_hidden_layers} layers",
            )


def build_qwen3(config: dict[str, Any]) -> Graph:
    """hidden: [T, hidden_size]; one output, "logits": [S, vocab_size]."""
    c = Qwen3Config.parse(config)
    norm = Norm(c.rms_norm_eps)
    rope = single_rope(c.rope_theta, c.rope_scaling, c.rope_parameters)
    attention = Attention.of(c, rope, qk_norm=norm)
    return pre_norm(c, config, attention, norm, ACTIVATIONS[c.hidden_act])

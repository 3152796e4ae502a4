"""Shape of a Llama or Qwen3 decoder, out of a Hugging Face config.json, and the bytes that a decode step must read."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from plow.errors import ConfigError

FAMILIES = {"llama": False, "qwen3": True}
"""model_type -> whether queries and keys are RMS-normalised per head."""
HEAD_DIM = {"qwen3": 128}
"""Where the family does not derive an absent head_dim from the hidden size."""


@dataclass(frozen=True)
class Shape:
    """config: the config.json itself, which transformers reads; everything else is a number of it."""

    family: str
    layers: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    eps: float
    tied: bool
    qk_norm: bool
    config: dict[str, Any] = field(repr=False, hash=False)

    @property
    def qkv_rows(self) -> int:
        return (self.heads + 2 * self.kv_heads) * self.head_dim

    def step_bytes(self, batch: int, ctx: int) -> int:
        """Bytes of a decode step, bf16: every projection once, and keys and values of `ctx` positions a sequence."""
        layer = self.hidden * (self.qkv_rows + self.heads * self.head_dim + 3 * self.ffn)
        kv = 2 * self.kv_heads * self.head_dim * ctx * batch
        return 2 * (self.layers * (layer + kv) + self.vocab * self.hidden)


def read_shape(path: Path) -> Shape:
    """Raises ConfigError for a file that is no config, another family, or biases, which no arm here adds."""
    try:
        config = json.loads(path.read_text("utf-8"))
        return shape_of(config, str(path))
    except (OSError, json.JSONDecodeError) as e:
        raise ConfigError(f"no config: {e}", str(path), "give a Hugging Face config.json") from None


def shape_of(config: dict[str, Any], where: str = "config") -> Shape:
    """See read_shape."""
    family = config.get("model_type")
    if family not in FAMILIES:
        raise ConfigError(f"model_type {family!r}", where, f"peers are written for {', '.join(sorted(FAMILIES))}")
    if config.get("attention_bias") or config.get("mlp_bias") or config.get("use_sliding_window"):
        raise ConfigError("biases or a sliding window", where, "no peer here has them")
    try:
        heads = int(config["num_attention_heads"])
        return Shape(
            family=family,
            layers=int(config["num_hidden_layers"]),
            hidden=int(config["hidden_size"]),
            ffn=int(config["intermediate_size"]),
            heads=heads,
            kv_heads=int(config.get("num_key_value_heads") or heads),
            head_dim=int(config.get("head_dim") or HEAD_DIM.get(family) or config["hidden_size"] // heads),
            vocab=int(config["vocab_size"]),
            eps=float(config["rms_norm_eps"]),
            tied=bool(config.get("tie_word_embeddings", False)),
            qk_norm=FAMILIES[family],
            config=config,
        )
    except KeyError as e:
        raise ConfigError(f"{e.args[0]} is missing", where, "give a complete config.json") from None

"""Rotary position embedding tables, bit-equal to what transformers computes in float32."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from plow.errors import ConfigError

SUPPORTED_SCALING = ("default", "linear", "llama3")


def inv_freq(theta: float, rotary_dim: int, scaling: dict[str, Any] | None = None) -> np.ndarray:
    """Inverse frequencies: f32 [rotary_dim / 2].

    theta ** (2i/d) is taken in float64 and rounded to float32, then inverted in float32: numpy's float32 power is up
    to 2 ulp off, which is 2.4e-4 in cos by position 8191. `scaling` is HF's rope_parameters dict (rope_type default,
    linear or llama3). Formula of llama3: transformers modeling_rope_utils, `_compute_llama3_parameters`.
    """
    exponent = (np.arange(0, rotary_dim, 2, dtype=np.float32) / np.float32(rotary_dim)).astype(np.float64)
    inv = (np.float32(1.0) / (np.float64(theta) ** exponent).astype(np.float32)).astype(np.float32)
    scaling = scaling or {}
    kind = scaling.get("rope_type", "default")
    if kind == "default":
        return inv
    if kind == "linear":
        return np.divide(inv, np.float32(scaling["factor"]), dtype=np.float32)
    if kind == "llama3":
        return _llama3(inv, scaling)
    raise ConfigError(
        f"rope_type {kind!r} is not supported", "config.json", f"supported: {', '.join(SUPPORTED_SCALING)}"
    )


def _llama3(inv: np.ndarray, s: dict[str, Any]) -> np.ndarray:
    factor, low, high = (np.float32(s[k]) for k in ("factor", "low_freq_factor", "high_freq_factor"))
    old = s["original_max_position_embeddings"]
    wavelen = (np.float32(2 * math.pi) / inv).astype(np.float32)
    slow = np.where(wavelen > old / low, inv / factor, inv).astype(np.float32)
    smooth = ((np.float32(old) / wavelen - low) / (high - low)).astype(np.float32)
    blended = ((1 - smooth) * slow / factor + smooth * slow).astype(np.float32)
    medium = ~(wavelen < old / high) & ~(wavelen > old / low)
    return np.where(medium, blended, slow).astype(np.float32)


def cos_sin(
    positions: np.ndarray, theta: float, rotary_dim: int, scaling: dict[str, Any] | None = None, dtype: Any = np.float32
) -> tuple[np.ndarray, np.ndarray]:
    """cos, sin: [len(positions), rotary_dim / 2]. Angles are formed in float32, as transformers does."""
    angle = positions.astype(np.float32)[:, None] * inv_freq(theta, rotary_dim, scaling)[None, :]
    return np.cos(angle).astype(dtype), np.sin(angle).astype(dtype)


def rotate(x: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> np.ndarray:
    """x: [T, heads, head_dim]; pairs (i, i + rotary_dim/2) of the first rotary_dim features are rotated."""
    half = cos.shape[-1]
    a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    c, s = cos[:, None, :], sin[:, None, :]
    return np.concatenate([a * c - b * s, b * c + a * s, rest], axis=-1)

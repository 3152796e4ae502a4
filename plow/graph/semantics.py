"""Reference semantics of every operator in numpy.

Every function takes its operands in the op's order, then the attributes as keywords, and `caches` where it touches a
KV cache; it returns a list of results. Arithmetic is done in the dtype of the activations (float32 or float64).
Shapes: x [T, features]; weights [out, in]; positions, slots [T].
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from plow.graph.ir import Attrs, TensorType
from plow.graph.rope import cos_sin, rotate

Array = np.ndarray
Caches = dict[tuple[str, int], tuple[Array, Array]]
"""(cache name, slot) -> keys, values: [positions, num_kv_heads, head_dim]."""


def kv_bytes_read(kv: TensorType, attrs: Attrs, bind: dict[str, int]) -> float:
    """Bytes of cache that one application reads: every row reads its own context, at most `window` positions."""
    context = min(bind["C"], attrs["window"]) if attrs.get("window") else bind["C"]
    return 4.0 * bind.get("Q", 1) * context * int(kv.shape[1])


def embed(tokens: Array, table: Array, *, scale: float = 1.0) -> list[Array]:
    rows = table[tokens]
    return [rows * rows.dtype.type(scale)]


def rms_norm(x: Array, weight: Array, *, eps: float, zero_centered: bool = False) -> list[Array]:
    groups = x.reshape(x.shape[0], -1, weight.shape[0])
    mean = np.mean(groups * groups, axis=-1, keepdims=True)
    w = weight.astype(x.dtype) + (1 if zero_centered else 0)
    return [(groups / np.sqrt(mean + x.dtype.type(eps)) * w).reshape(x.shape)]


def linear(x: Array, weight: Array, bias: Array | None = None) -> list[Array]:
    y = x @ weight.astype(x.dtype, copy=False).T
    return [y if bias is None else y + bias.astype(x.dtype, copy=False)]


def rope(
    x: Array, positions: Array, *, head_dim: int, rotary_dim: int, theta: float, scaling: dict[str, Any] | None = None
) -> list[Array]:
    cos, sin = cos_sin(positions, theta, rotary_dim, scaling, x.dtype)
    return [rotate(x.reshape(x.shape[0], -1, head_dim), cos, sin).reshape(x.shape)]


def kv_append(
    k: Array, v: Array, positions: Array, slots: Array, *, num_kv_heads: int, head_dim: int, cache: str, caches: Caches
) -> list[str]:
    for t in range(len(positions)):
        key, pos = (cache, int(slots[t])), int(positions[t])
        keys, values = caches.get(key, (np.empty((0, num_kv_heads, head_dim), k.dtype),) * 2)
        if pos >= len(keys):
            grow = np.full((pos + 1 - len(keys), num_kv_heads, head_dim), np.nan, k.dtype)
            keys, values = np.concatenate([keys, grow]), np.concatenate([values, grow])
        keys[pos], values[pos] = k[t].reshape(num_kv_heads, head_dim), v[t].reshape(num_kv_heads, head_dim)
        caches[key] = (keys, values)
    return [cache]


def attention(
    q: Array,
    kv: str,
    positions: Array,
    slots: Array,
    *,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
    caches: Caches,
) -> list[Array]:
    out = np.empty_like(q)
    for t in range(len(positions)):
        end = int(positions[t]) + 1
        start = max(0, end - window) if window else 0
        keys, values = (c[start:end] for c in caches[(kv, int(slots[t]))])
        heads = q[t].reshape(num_kv_heads, num_heads // num_kv_heads, head_dim)
        s = np.einsum("ghd,pgd->ghp", heads, keys) * q.dtype.type(scale)
        if softcap:
            s = np.tanh(s / q.dtype.type(softcap)) * q.dtype.type(softcap)
        p = np.exp(s - s.max(axis=-1, keepdims=True))
        p /= p.sum(axis=-1, keepdims=True)
        out[t] = np.einsum("ghp,pgd->ghd", p, values).reshape(-1)
    return [out]


def activation(x: Array, *, act: str) -> list[Array]:
    if act == "silu":
        return [x / (1 + np.exp(-x))]
    if act == "gelu_tanh":
        c = x.dtype.type(math.sqrt(2 / math.pi))
        return [x.dtype.type(0.5) * x * (1 + np.tanh(c * (x + x.dtype.type(0.044715) * x * x * x)))]
    raise ValueError(act)


def add(a: Array, b: Array) -> list[Array]:
    return [a + b]


def mul(a: Array, b: Array) -> list[Array]:
    return [a * b]


def scale(x: Array, *, factor: float) -> list[Array]:
    return [x * x.dtype.type(factor)]


def softcap(x: Array, *, cap: float) -> list[Array]:
    return [np.tanh(x / x.dtype.type(cap)) * x.dtype.type(cap)]


def select_rows(x: Array, sample_rows: Array) -> list[Array]:
    return [x[sample_rows]]


# -- fused: compositions of the above ----------------------------------------------------------------------------------
def norm_linear(x: Array, norm_weight: Array, weight: Array, *, eps: float, zero_centered: bool = False) -> list[Array]:
    return linear(rms_norm(x, norm_weight, eps=eps, zero_centered=zero_centered)[0], weight)


def linear_add(x: Array, weight: Array, residual: Array) -> list[Array]:
    return add(residual, linear(x, weight)[0])


def norm_add(x: Array, weight: Array, residual: Array, *, eps: float, zero_centered: bool = False) -> list[Array]:
    return add(residual, rms_norm(x, weight, eps=eps, zero_centered=zero_centered)[0])


def act_mul(gate: Array, up: Array, *, act: str) -> list[Array]:
    return mul(activation(gate, act=act)[0], up)


def gated_linear(x: Array, gate_weight: Array, up_weight: Array, *, act: str) -> list[Array]:
    return act_mul(linear(x, gate_weight)[0], linear(x, up_weight)[0], act=act)


def norm_gated_linear(
    x: Array,
    norm_weight: Array,
    gate_weight: Array,
    up_weight: Array,
    *,
    act: str,
    eps: float,
    zero_centered: bool = False,
) -> list[Array]:
    h = rms_norm(x, norm_weight, eps=eps, zero_centered=zero_centered)[0]
    return gated_linear(h, gate_weight, up_weight, act=act)


def norm_rope(
    x: Array, weight: Array, positions: Array, *, eps: float, zero_centered: bool = False, **rope_attrs: Any
) -> list[Array]:
    return rope(rms_norm(x, weight, eps=eps, zero_centered=zero_centered)[0], positions, **rope_attrs)


def qkv(
    x: Array,
    norm_weight: Array | None,
    q_weight: Array,
    k_weight: Array,
    v_weight: Array,
    q_norm: Array | None,
    k_norm: Array | None,
    positions: Array,
    slots: Array,
    *,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    rotary_dim: int,
    theta: float,
    cache: str,
    caches: Caches,
    scaling: dict[str, Any] | None = None,
    eps: float = 0.0,
    qk_eps: float = 0.0,
    zero_centered: bool = False,
) -> list[Any]:
    h = x if norm_weight is None else rms_norm(x, norm_weight, eps=eps, zero_centered=zero_centered)[0]
    q, k, v = (linear(h, w)[0] for w in (q_weight, k_weight, v_weight))
    if q_norm is not None and k_norm is not None:
        q = rms_norm(q, q_norm, eps=qk_eps, zero_centered=zero_centered)[0]
        k = rms_norm(k, k_norm, eps=qk_eps, zero_centered=zero_centered)[0]
    if rotary_dim:
        q, k = (
            rope(z, positions, head_dim=head_dim, rotary_dim=rotary_dim, theta=theta, scaling=scaling)[0]
            for z in (q, k)
        )
    kv = kv_append(k, v, positions, slots, num_kv_heads=num_kv_heads, head_dim=head_dim, cache=cache, caches=caches)
    return [q, kv[0]]

"""Flash decoding as a torch operator, so that torch.compile calls it without a graph break."""

from __future__ import annotations

import math

import torch

from . import kernels

BLOCK_T = 32


@torch.library.custom_op(
    "plow_peers::flash_decode", mutates_args=(), schema="(Tensor q, Tensor kv, Tensor position, int splits) -> Tensor"
)
def flash_decode(q: torch.Tensor, kv: torch.Tensor, position: torch.Tensor, splits: int) -> torch.Tensor:
    """bf16 [batch, heads, head_dim]: attention of rotated q (same shape) over positions 0..position of kv, bf16 [2,
    batch, kv_heads, max_ctx, head_dim], in `splits` parts (a power of two)."""
    batch, heads, d = q.shape
    kv_heads, max_ctx = kv.shape[2], kv.shape[3]
    out = torch.empty_like(q)
    part = torch.empty(batch * heads, splits, d, dtype=torch.float32, device=q.device)
    top, total = torch.empty(2, batch * heads, splits, dtype=torch.float32, device=q.device)
    scale = d**-0.5 * math.log2(math.e)
    kernels.attend[(batch * kv_heads, splits)](
        q, kv[0], kv[1], position, top, top, q, q, out, part, top, total, 0.0, scale, max_ctx, HEADS=heads,
        KV_HEADS=kv_heads, D=d, FUSED=False, QK_NORM=False, SPLITS=splits, BLOCK_T=BLOCK_T, PDL=False, num_warps=4
    )  # fmt: skip
    if splits > 1:
        kernels.combine[(batch * heads,)](part, top, total, out, D=d, SPLITS=splits, PDL=False, num_warps=1)
    return out


@flash_decode.register_fake
def _(q: torch.Tensor, kv: torch.Tensor, position: torch.Tensor, splits: int) -> torch.Tensor:
    return torch.empty_like(q)

"""Weight layouts: how a checkpoint tensor lies in the arena so that an interpreter streams it.

    units: W [N, K] bf16 -> [ceil(N/32)][K/2][2][16][2]; unit u, pair p, half h, lane l, j: W[32u + 16h + l, 2p + j]

One 128-byte step of a unit holds two k of 32 output rows: a shift or a mask decodes it to fp32, bf16 dot products take
it as it is, and the epilogue is lane-wise. Rows beyond N are zero.
"""

from __future__ import annotations

import numpy as np

from plow.errors import LoweringError
from plow.packet.abi import KV_BLOCK, LANES, STREAM_CHUNK, STREAM_TILE, UNIT_ROWS


def units_bytes(n: int, k: int) -> int:
    return num_units(n) * UNIT_ROWS * k * 2


def num_units(n: int) -> int:
    return -(-n // UNIT_ROWS)


def pack_units(weight: np.ndarray) -> np.ndarray:
    """weight: [N, K], 2-byte dtype, K a multiple of 16 -> u16 [N/32, K/2, 2, 16, 2]."""
    n, k = weight.shape
    if k % LANES:
        raise LoweringError(f"input features {k} are no multiple of {LANES}", "", "pad the checkpoint")
    bits = weight.view(np.uint16)
    pad = num_units(n) * UNIT_ROWS - n
    if pad:
        bits = np.concatenate([bits, np.zeros((pad, k), np.uint16)])
    # Copy in k-chunks of 32 rows: contiguous reads of a row beat one big strided transpose.
    return np.ascontiguousarray(bits.reshape(-1, 2, LANES, k // 2, 2).transpose(0, 3, 1, 2, 4))


def unpack_units(packed: np.ndarray, n: int) -> np.ndarray:
    """Inverse of pack_units: u16 [N, K]."""
    units, pairs = packed.shape[:2]
    return packed.transpose(0, 2, 3, 1, 4).reshape(units * UNIT_ROWS, 2 * pairs)[:n]


def pack_gated(gate: np.ndarray, up: np.ndarray) -> np.ndarray:
    """gate, up: [F, K] -> units whose first half is 16 gate rows and second half the 16 up rows of the same columns."""
    f, k = gate.shape
    pad = -f % LANES
    g, u = (np.pad(w.view(np.uint16), ((0, pad), (0, 0))).reshape(-1, LANES, k) for w in (gate, up))
    return pack_units(np.stack([g, u], axis=1).reshape(-1, k))


def norm_vector(weight: np.ndarray, zero_centered: bool) -> np.ndarray:
    """f32 vector of a norm weight with the +1 of zero-centred norms folded in."""
    w = weight.astype(np.float32)
    return w + np.float32(1.0) if zero_centered else w


def pack_tiles(weight: np.ndarray) -> np.ndarray:
    """weight: [N, K], 2-byte dtype, N a multiple of 16, K of 32 -> u16 [N/16, K/32, 2, 8, 32]."""
    n, k = weight.shape
    bits = weight.view(np.uint16).reshape(n // STREAM_TILE, 2, 8, k // STREAM_CHUNK, STREAM_CHUNK)
    return np.ascontiguousarray(bits.transpose(0, 3, 1, 2, 4))


def pack_gated_tiles(gate: np.ndarray, up: np.ndarray) -> np.ndarray:
    """gate, up: [N, K] -> u16 [N/8, K/32, 2, 8, 32]; half 0 of a tile holds gate rows, half 1 the same up rows."""
    n, k = gate.shape
    both = np.stack([x.view(np.uint16).reshape(n // 8, 8, k // STREAM_CHUNK, STREAM_CHUNK) for x in (gate, up)], axis=1)
    return np.ascontiguousarray(both.transpose(0, 3, 1, 2, 4))


def unpack_tiles(packed: np.ndarray) -> np.ndarray:
    """u16 [tiles, K/32, 2, 8, 32] -> [tiles, 16, K]: the rows of each tile (of a gated one: 8 gate rows, 8 up rows)."""
    tiles, chunks = packed.shape[:2]
    return packed.transpose(0, 2, 3, 1, 4).reshape(tiles, STREAM_TILE, chunks * STREAM_CHUNK)


def page_keys(pages: np.ndarray, head_dim: int) -> np.ndarray:
    """Keys in pages of a kv head, u16 [..., 32 * head_dim]: view [..., p/8, p%8, d/32, d%32] of position, feature."""
    cells = pages[..., : KV_BLOCK * head_dim].reshape(*pages.shape[:-1], 2, head_dim // STREAM_CHUNK, 8, STREAM_CHUNK)
    return cells.swapaxes(-2, -3)


def page_values(pages: np.ndarray, head_dim: int) -> np.ndarray:
    """Values likewise: a view [..., p/8, p%8/2, p%2, d/16, d/8%2, d%8]."""
    cells = pages[..., KV_BLOCK * head_dim :].reshape(*pages.shape[:-1], head_dim // 16, 8, 4, 2, 2, 2)
    n = cells.ndim - 6
    return cells.transpose(*range(n), n + 4, n + 2, n + 5, n, n + 3, n + 1)

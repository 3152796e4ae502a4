"""Pack and unpack what STREAM packets exchange: vec, rows, ssq, state, pages and partial of `plow.packet.abi`.

bf16 values are their u16 bits. Weight tiles, and views of pages in place, are in `plow.packet.layouts`.
"""

from __future__ import annotations

import numpy as np

from plow.packet.abi import KV_BLOCK, STREAM_CHUNK, STREAM_COLUMNS, STREAM_TILE
from plow.packet.layouts import page_keys, page_values


def pack_vec(bits: np.ndarray) -> np.ndarray:
    """u16 [cols, features], features a multiple of 32 -> u16 [features/32, cols, 32]."""
    return np.ascontiguousarray(bits.reshape(len(bits), -1, STREAM_CHUNK).swapaxes(0, 1))


def unpack_vec(packed: np.ndarray) -> np.ndarray:
    """Inverse of pack_vec: u16 [cols, features]."""
    return packed.swapaxes(0, 1).reshape(packed.shape[1], -1)


def pack_rows(x: np.ndarray, stride: int) -> np.ndarray:
    """f32 [cols, n], n <= stride -> f32 [cols, stride]; what lies behind a row is zero."""
    return np.pad(x, ((0, 0), (0, stride - x.shape[1])))


def unpack_rows(packed: np.ndarray, n: int) -> np.ndarray:
    """Inverse of pack_rows: f32 [cols, n]."""
    return packed[:, :n]


def pack_ssq(x: np.ndarray) -> np.ndarray:
    """x: f32 [cols, features], features a multiple of 16 -> f32 [features/16, cols]: sums of x^2 over each tile."""
    squares = np.square(x).reshape(len(x), -1, STREAM_TILE).sum(axis=2, dtype=np.float32)
    return np.ascontiguousarray(squares.T)


def pack_state(x: np.ndarray) -> np.ndarray:
    """x: f32 [8, features], features a multiple of 16 -> f32 [features/16, 32, 4] in the order of lanes."""
    # [column pair q, column of the pair, tile, half of the tile, row g] -> [tile, g, q, half, column of the pair]
    parts = x.reshape(STREAM_COLUMNS // 2, 2, -1, 2, STREAM_TILE // 2).transpose(2, 4, 0, 3, 1)
    return np.ascontiguousarray(parts).reshape(-1, 32, 4)


def unpack_state(packed: np.ndarray) -> np.ndarray:
    """Inverse of pack_state: f32 [8, features]."""
    parts = packed.reshape(-1, STREAM_TILE // 2, STREAM_COLUMNS // 2, 2, 2)
    return parts.transpose(2, 4, 0, 3, 1).reshape(STREAM_COLUMNS, -1)


def pack_pages(k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """k, v: u16 [..., 16, head_dim], head_dim a multiple of 32 -> u16 [..., 32 * head_dim]."""
    head_dim = k.shape[-1]
    pages = np.empty((*k.shape[:-2], 2 * KV_BLOCK * head_dim), np.uint16)
    for cells, x in ((page_keys(pages, head_dim), k), (page_values(pages, head_dim), v)):
        cells[...] = x.reshape(cells.shape)
    return pages


def unpack_pages(pages: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Inverse of pack_pages: k, v u16 [..., 16, head_dim]."""
    head_dim = pages.shape[-1] // (2 * KV_BLOCK)
    shape = (*pages.shape[:-1], KV_BLOCK, head_dim)
    return page_keys(pages, head_dim).reshape(shape), page_values(pages, head_dim).reshape(shape)


def partial_words(group: int, head_dim: int) -> int:
    """Words of a partial, a multiple of 4."""
    return group * head_dim + 2 * group + -2 * group % 4


def pack_partial(sums: np.ndarray, top: np.ndarray, mass: np.ndarray) -> np.ndarray:
    """sums: f32 [..., group, head_dim]; top, mass: f32 [..., group] -> f32 [..., partial_words], padded with zeros."""
    *many, group, head_dim = sums.shape
    out = np.zeros((*many, partial_words(group, head_dim)), np.float32)
    out[..., : group * head_dim] = sums.reshape(*many, -1)
    out[..., group * head_dim : group * (head_dim + 2)] = np.stack([top, mass], axis=-1).reshape(*many, -1)
    return out


def unpack_partial(packed: np.ndarray, group: int, head_dim: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Inverse of pack_partial: sums [..., group, head_dim], top and mass [..., group]."""
    many, width = packed.shape[:-1], group * head_dim
    both = packed[..., width : width + 2 * group].reshape(*many, group, 2)
    return packed[..., :width].reshape(*many, group, head_dim), both[..., 0], both[..., 1]

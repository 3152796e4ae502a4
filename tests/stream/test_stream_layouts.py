"""The layouts of the GPU's weights and KV pages are the documented index maps."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from plow.packet.layouts import pack_gated_tiles, pack_tiles, page_keys, page_values, unpack_tiles
from plow.runtime.numpy_stream import SPLIT_PAGES, keys


def numbers(*shape: int) -> np.ndarray:
    return np.arange(np.prod(shape), dtype=np.uint16).reshape(shape)


def test_tiles_are_the_documented_map_and_unpack():
    w = numbers(48, 96)
    packed = pack_tiles(w)
    assert packed.shape == (3, 3, 2, 8, 32)
    assert all(
        packed[t, c, h, r, e] == w[16 * t + 8 * h + r, 32 * c + e]
        for t in range(3) for c in range(3) for h in range(2) for r in (0, 5) for e in (0, 31)
    )  # fmt: skip
    assert (unpack_tiles(packed).reshape(48, 96) == w).all()


def test_a_gated_tile_holds_gate_and_up_rows_of_the_same_features():
    gate, up = numbers(24, 64), numbers(24, 64) + 5000
    tiles = unpack_tiles(pack_gated_tiles(gate, up)).reshape(3, 2, 8, 64)
    assert (tiles[:, 0].reshape(24, 64) == gate).all() and (tiles[:, 1].reshape(24, 64) == up).all()


@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_pages_are_the_documented_map(head_dim):
    page = numbers(2, 32 * head_dim)
    k, v = page_keys(page, head_dim), page_values(page, head_dim)
    assert np.shares_memory(k, page) and np.shares_memory(v, page)
    k, v = k.reshape(2, 16, head_dim), v.reshape(2, 16, head_dim)
    raw_k = page[:, : 16 * head_dim].reshape(2, 2, head_dim // 32, 8, 32)
    raw_v = page[:, 16 * head_dim :].reshape(2, head_dim // 16, 8, 4, 2, 2, 2)
    for p in (0, 3, 9, 15):
        for d in (0, 7, 8, 33, head_dim - 1):
            assert (k[:, p, d] == raw_k[:, p // 8, d // 32, p % 8, d % 32]).all()
            assert (v[:, p, d] == raw_v[:, d // 16, d % 8, p % 8 // 2, d // 8 % 2, p // 8, p % 2]).all()


def test_the_largest_key_is_the_first_largest_number():
    logits = np.array([[-3.0, np.nan, 2.5, -np.inf, 2.5, 0.0]], np.float32)
    order = np.argsort(keys(logits, np.arange(6, dtype=np.uint32))[0])[::-1]
    assert order.tolist() == [2, 4, 5, 0, 3, 1]


def test_the_numpy_interpreter_cuts_attention_as_the_kernel_does():
    source = Path(__file__).parents[2] / "kernels" / "cuda" / "worker.cuh"
    found = re.search(r"#define PLOW_SPLIT_PAGES (\d+)", source.read_text())
    assert found and int(found[1]) == SPLIT_PAGES

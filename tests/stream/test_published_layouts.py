"""What STREAM packets exchange lies as the ABI says, element by element, and unpacks to what was packed."""

from __future__ import annotations

import numpy as np
import pytest
import stream_layouts as layouts


def floats(*shape: int) -> np.ndarray:
    return np.random.default_rng(1).standard_normal(shape).astype(np.float32)


def bits(*shape: int) -> np.ndarray:
    return np.random.default_rng(2).integers(1 << 16, size=shape, dtype=np.uint16)


@pytest.mark.parametrize("cols", [1, 8])
def test_vec_is_the_documented_map(cols):
    x = bits(cols, 96)
    packed = layouts.pack_vec(x)
    assert packed.shape == (3, cols, 32)
    assert all(packed[f // 32, c, f % 32] == x[c, f] for c in range(cols) for f in range(96))
    assert (layouts.unpack_vec(packed) == x).all()


def test_rows_have_a_stride():
    x = floats(8, 40)
    packed = layouts.pack_rows(x, 48)
    assert packed.shape == (8, 48) and (packed.reshape(-1)[48 + 3] == x[1, 3]) and not packed[:, 40:].any()
    assert (layouts.unpack_rows(packed, 40) == x).all()


@pytest.mark.parametrize("cols", [1, 8])
def test_ssq_is_a_sum_of_squares_of_each_tile(cols):
    x = floats(cols, 48)
    packed = layouts.pack_ssq(x)
    assert packed.shape == (3, cols)
    for t in range(3):
        for c in range(cols):
            assert packed[t, c] == pytest.approx(sum(float(v) ** 2 for v in x[c, 16 * t : 16 * t + 16]), rel=1e-6)


def test_state_is_the_documented_map():
    x = floats(8, 48)
    packed = layouts.pack_state(x)
    assert packed.shape == (3, 32, 4)
    for t in range(3):
        for g in range(8):
            for q in range(4):
                low, high = 16 * t + g, 16 * t + g + 8
                want = [x[2 * q, low], x[2 * q + 1, low], x[2 * q, high], x[2 * q + 1, high]]
                assert packed[t, 4 * g + q].tolist() == want
    assert (layouts.unpack_state(packed) == x).all()


@pytest.mark.parametrize("head_dim", [32, 64, 256])
def test_pages_are_the_documented_map(head_dim):
    k, v = bits(3, 2, 16, head_dim), bits(3, 2, 16, head_dim)[::-1]
    packed = layouts.pack_pages(k, v)
    assert packed.shape == (3, 2, 32 * head_dim)
    raw_k = packed[2, 1, : 16 * head_dim].reshape(2, head_dim // 32, 8, 32)
    raw_v = packed[2, 1, 16 * head_dim :].reshape(head_dim // 16, 8, 4, 2, 2, 2)
    for p in range(16):
        for d in range(head_dim):
            assert raw_k[p // 8, d // 32, p % 8, d % 32] == k[2, 1, p, d]
            assert raw_v[d // 16, d % 8, p % 8 // 2, d // 8 % 2, p // 8, p % 2] == v[2, 1, p, d]
    again = layouts.unpack_pages(packed)
    assert (again[0] == k).all() and (again[1] == v).all()


@pytest.mark.parametrize(("group", "words"), [(1, 68), (2, 132), (3, 200)])
def test_partial_has_maximum_and_mass_behind_the_sums(group, words):
    sums, top, mass = floats(5, group, 64), floats(5, group), floats(5, group) + 9
    packed = layouts.pack_partial(sums, top, mass)
    assert packed.shape == (5, words) and layouts.partial_words(group, 64) == words
    for h in range(group):
        assert (packed[:, 64 * h : 64 * h + 64] == sums[:, h]).all()
        assert (packed[:, 64 * group + 2 * h] == top[:, h]).all()
        assert (packed[:, 64 * group + 2 * h + 1] == mass[:, h]).all()
    assert not packed[:, 66 * group :].any()
    again = layouts.unpack_partial(packed, group, 64)
    assert all((a == b).all() for a, b in zip(again, (sums, top, mass), strict=True))

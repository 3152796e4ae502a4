"""QKV, ROPE and KV_APPEND: what happens to a head, and where it lands in the KV blocks."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
from rig import POISON, Lib, Rig, Rng, bf16, page_table, step, stride, widen

from plow.packet.abi import KV_BLOCK, Flag, Opcode
from plow.packet.codec import Packet
from plow.packet.layouts import pack_units
from plow.runtime.step import StepBatch

EPS = 1e-5


def rms(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    return x / np.sqrt((x.astype(np.float64) ** 2).mean(-1, keepdims=True) + EPS) * weight


def rotate(x: np.ndarray, table: np.ndarray) -> np.ndarray:
    """x: [T, heads, head_dim]; table: [T, rotary_dim], cosines then sines."""
    half = table.shape[1] // 2
    c, s = table[:, None, :half], table[:, None, half:]
    a, b = x[..., :half], x[..., half:2 * half]
    return np.concatenate([a * c - b * s, b * c + a * s, x[..., 2 * half:]], -1)


def rope_table(context: int, rotary_dim: int) -> np.ndarray:
    angle = np.arange(context)[:, None] * 0.3 ** np.arange(rotary_dim // 2)[None]
    return np.concatenate([np.cos(angle), np.sin(angle)], 1).astype(np.float32)


def stored(region: np.ndarray, batch: StepBatch, heads: int, head_dim: int) -> tuple[np.ndarray, np.ndarray]:
    """k, v: [T, heads, head_dim] of the batch's rows, read from a layer's region by the documented layout."""
    blocks = region.reshape(-1, 2, heads, KV_BLOCK * head_dim)
    at = batch.page_table[batch.slots, batch.positions // KV_BLOCK], batch.positions % KV_BLOCK
    keys = [blocks[b, 0].reshape(heads, head_dim, KV_BLOCK)[:, :, i] for b, i in zip(*at, strict=True)]
    values = [blocks[b, 1].reshape(heads, KV_BLOCK, head_dim)[:, i] for b, i in zip(*at, strict=True)]
    return np.array(keys), np.array(values)


def region_bytes_written(region: np.ndarray) -> int:
    return int((region != POISON).sum())


@dataclass
class Attention:
    """A q, k, v projection and its inputs."""

    heads: int
    kv_heads: int
    head_dim: int
    rotary_dim: int
    x: np.ndarray
    w: np.ndarray
    weights: dict[str, np.ndarray]
    batch: StepBatch

    @classmethod
    def make(cls, rng: Rng, t: int, heads: int, kv_heads: int, head_dim: int, rotary_dim: int | None = None,
             k: int = 48, context: int = 64) -> Attention:
        rotary_dim = head_dim if rotary_dim is None else rotary_dim
        n = (heads + 2 * kv_heads) * head_dim
        w = widen(bf16(rng.standard_normal((n, k)) / np.sqrt(k)))
        positions = rng.permutation(context)[:t].astype(np.int32)
        slots = (np.arange(t) % 2).astype(np.int32)
        weights = {"norm_weight": k, "q_norm": head_dim, "k_norm": head_dim}
        vectors = {name: rng.standard_normal(size).astype(np.float32) for name, size in weights.items()}
        return cls(heads, kv_heads, head_dim, rotary_dim, rng.standard_normal((t, k)).astype(np.float32), w,
                   vectors | {"rope": rope_table(context, rotary_dim)},
                   step(t, positions=positions, slots=slots, pages=page_table(rng, 2, context)))

    def run(self, lib: Lib, flags: Flag, cuts: tuple[int, ...] = ()) -> tuple[np.ndarray, np.ndarray]:
        """One packet a range of heads; q rows [T, stride] and the KV region."""
        rig = Rig(lib)
        (t, k), width = self.x.shape, self.heads * self.head_dim
        operands = {"x": rig.rows(self.x), "weight": rig.put(pack_units(bf16(self.w))), "y": rig.empty(t, width),
                    **{name: rig.put(a) for name, a in self.weights.items()}}
        size = self.batch.page_table.size * 2 * self.kv_heads * KV_BLOCK * self.head_dim
        operands["kv"] = rig.put(np.full(size, POISON, np.float32))
        dims = {"row0": 0, "row1": t, "row_step": 1, "k": k, "num_heads": self.heads, "num_kv_heads": self.kv_heads,
                "head_dim": self.head_dim, "rotary_dim": self.rotary_dim, "x_stride": stride(k),
                "y_stride": stride(width)}
        rig.run([Packet(Opcode.QKV, operands, dims | {"head0": a, "head1": b}, {"eps": EPS, "qk_eps": EPS}, flags)
                 for a, b in pairwise((0, *cuts, self.heads + 2 * self.kv_heads))], self.batch)
        return rig.view(operands["y"], t, width), rig.arena[operands["kv"]:][:4 * size].view(np.float32)

    def expected(self, flags: Flag) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        x = rms(self.x, self.weights["norm_weight"]) if flags & Flag.NORM else self.x.astype(np.float64)
        z = (x @ self.w.T).reshape(len(x), -1, self.head_dim)
        q, k, v = np.split(z, [self.heads, self.heads + self.kv_heads], axis=1)
        if flags & Flag.QK_NORM:
            q, k = rms(q, self.weights["q_norm"]), rms(k, self.weights["k_norm"])
        if flags & Flag.ROPE:
            table = self.weights["rope"][self.batch.positions]
            q, k = rotate(q, table), rotate(k, table)
        return q, k, v


SHAPES = [(9, 3, 64), (4, 1, 256), (2, 2, 128), (3, 1, 16), (5, 5, 80), (4, 2, 32)]


@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), SHAPES)
@pytest.mark.parametrize("t", [1, 2, 14])
def test_q_rows_and_kv_blocks_hold_the_projected_heads(lib: Lib, rng: Rng, heads: int, kv_heads: int, head_dim: int,
                                                       t: int) -> None:
    a, flags = Attention.make(rng, t, heads, kv_heads, head_dim), Flag.NORM | Flag.QK_NORM | Flag.ROPE
    y, region = a.run(lib, flags)
    q, k, v = a.expected(flags)
    np.testing.assert_allclose(y[:, :heads * head_dim].reshape(q.shape), q, atol=3e-5)
    found = stored(region, a.batch, kv_heads, head_dim)
    np.testing.assert_allclose(found[0], k, atol=3e-5)
    np.testing.assert_allclose(found[1], v, atol=3e-5)
    assert region_bytes_written(region) == 2 * t * kv_heads * head_dim, "other positions were written"


@pytest.mark.parametrize("flags", [Flag(0), Flag.NORM, Flag.ROPE, Flag.QK_NORM])
def test_each_flag_of_qkv_does_its_part_alone(lib: Lib, rng: Rng, flags: Flag) -> None:
    a = Attention.make(rng, 3, 4, 2, 64)
    y, region = a.run(lib, flags)
    q, k, v = a.expected(flags)
    np.testing.assert_allclose(y.reshape(q.shape), q, atol=3e-5)
    np.testing.assert_allclose(stored(region, a.batch, 2, 64)[0], k, atol=3e-5)
    np.testing.assert_allclose(stored(region, a.batch, 2, 64)[1], v, atol=3e-5)


@pytest.mark.parametrize(("head_dim", "rotary_dim"), [(64, 32), (80, 20), (128, 64), (16, 8)])
def test_features_beyond_rotary_dim_are_not_rotated(lib: Lib, rng: Rng, head_dim: int, rotary_dim: int) -> None:
    a = Attention.make(rng, 3, 2, 1, head_dim, rotary_dim)
    y, region = a.run(lib, Flag.ROPE)
    q, k, _ = a.expected(Flag.ROPE)
    np.testing.assert_allclose(y[:, :2 * head_dim].reshape(q.shape), q, atol=3e-5)
    np.testing.assert_allclose(stored(region, a.batch, 1, head_dim)[0], k, atol=3e-5)


@pytest.mark.parametrize("head_dim", [16, 64, 80])
def test_cutting_the_heads_into_packets_changes_no_bit(lib: Lib, rng: Rng, head_dim: int) -> None:
    a, flags = Attention.make(rng, 5, 3, 3, head_dim), Flag.NORM | Flag.ROPE
    whole, cut = a.run(lib, flags), a.run(lib, flags, cuts=(1, 2, 5, 7))
    assert all(np.array_equal(x.view(np.uint32), y.view(np.uint32)) for x, y in zip(whole, cut, strict=True))


def test_the_dot_class_of_qkv_rounds_the_normalised_rows(lib: Lib, rng: Rng) -> None:
    a = Attention.make(rng, 3, 2, 1, 64)
    y, _ = a.run(lib, Flag.BF16_DOT)
    expected = (widen(bf16(a.x)).astype(np.float64) @ a.w.T)[:, :128]
    np.testing.assert_allclose(y, expected, atol=3e-5)


def test_qkv_gives_the_same_bits_in_all_widths(libs: dict[str, Lib], rng: Rng) -> None:
    a = Attention.make(rng, 14, 4, 2, 80)
    first, *others = (a.run(lib, Flag.NORM | Flag.QK_NORM | Flag.ROPE) for lib in libs.values())
    for other in others:
        assert all(np.array_equal(x.view(np.uint32), y.view(np.uint32)) for x, y in zip(first, other, strict=True))


@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize(("head_dim", "rotary_dim"), [(64, 64), (80, 40), (16, 16)])
def test_rope_rotates_every_head_by_the_rows_position(lib: Lib, rng: Rng, head_dim: int, rotary_dim: int,
                                                      normed: bool) -> None:
    rig, t, heads = Rig(lib), 5, 3
    x = rng.standard_normal((t, heads * head_dim)).astype(np.float32)
    table, weight = rope_table(32, rotary_dim), rng.standard_normal(head_dim).astype(np.float32)
    operands = {"x": rig.rows(x), "rope": rig.put(table), "y": rig.empty(t, heads * head_dim),
                "norm_weight": rig.put(weight)}
    dims = {"row0": 1, "row1": t, "row_step": 2, "num_heads": heads, "head_dim": head_dim, "rotary_dim": rotary_dim,
            "x_stride": stride(x.shape[1]), "y_stride": stride(x.shape[1])}
    positions = np.array([3, 17, 0, 31, 8], np.int32)
    packet = Packet(Opcode.ROPE, operands, dims, {"eps": EPS}, Flag.NORM if normed else Flag(0))
    rig.run([packet], step(t, positions=positions))
    z = x.reshape(t, heads, head_dim)
    expected = rotate(rms(z, weight) if normed else z, table[positions]).reshape(t, -1)
    y = rig.view(operands["y"], t, heads * head_dim)
    np.testing.assert_allclose(y[1::2, :x.shape[1]], expected[1::2], atol=1e-5)
    assert (y[::2] == POISON).all()


@pytest.mark.parametrize("head_dim", [16, 64, 80])
def test_kv_append_writes_exactly_the_rows_positions(lib: Lib, rng: Rng, head_dim: int) -> None:
    rig, t, heads = Rig(lib), 4, 2
    k, v = (rng.standard_normal((t, heads * head_dim)).astype(np.float32) for _ in "kv")
    batch = step(t, positions=[15, 16, 17, 47], slots=[0, 0, 1, 1], pages=page_table(rng, 2, 48))
    size = batch.page_table.size * 2 * heads * KV_BLOCK * head_dim
    operands = {"k": rig.rows(k), "v": rig.rows(v), "kv": rig.put(np.full(size, POISON, np.float32))}
    dims = {"row0": 0, "row1": t, "row_step": 1, "num_kv_heads": heads, "head_dim": head_dim,
            "k_stride": stride(k.shape[1]), "v_stride": stride(v.shape[1])}
    rig.run([Packet(Opcode.KV_APPEND, operands, dims)], batch)
    region = rig.arena[operands["kv"]:][:4 * size].view(np.float32)
    found = stored(region, batch, heads, head_dim)
    assert np.array_equal(found[0].reshape(t, -1), k) and np.array_equal(found[1].reshape(t, -1), v)
    assert region_bytes_written(region) == 2 * k.size

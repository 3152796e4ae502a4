"""Weight layouts and the regions that packets touch."""

import numpy as np
import pytest

from plow.errors import LoweringError
from plow.packet.abi import Domain, Epilogue, Opcode
from plow.packet.codec import Packet
from plow.packet.effects import Region, effects, overlaps
from plow.packet.layouts import norm_vector, pack_gated, pack_units, unpack_units


@pytest.mark.parametrize("n, k", [(32, 16), (33, 32), (1, 16), (100, 48)])
def test_unit_packing_is_a_bijection_with_zero_padding(n, k):
    w = np.random.default_rng(0).integers(0, 1 << 16, (n, k), dtype=np.uint16)
    packed = pack_units(w)
    assert (unpack_units(packed, n) == w).all()
    assert not unpack_units(packed, packed.shape[0] * 32)[n:].any()


def test_the_index_map_of_a_unit_is_the_documented_one():
    w = np.arange(64 * 32, dtype=np.uint16).reshape(64, 32)
    packed = pack_units(w)
    assert all(
        packed[u, p, h, lane, j] == w[32 * u + 16 * h + lane, 2 * p + j]
        for u in range(2)
        for p in (0, 7, 15)
        for h in range(2)
        for lane in (0, 15)
        for j in range(2)
    )


def test_gated_units_hold_gate_and_up_of_the_same_columns():
    gate, up = (np.full((20, 16), v, np.uint16) for v in (1, 2))
    rows = unpack_units(pack_gated(gate, up), 64)
    assert (rows[:16] == 1).all() and (rows[16:32] == 2).all() and (rows[32:36] == 1).all() and not rows[36:48].any()


def test_a_zero_centred_norm_weight_is_folded():
    assert (norm_vector(np.zeros(4, np.float32), True) == 1).all() and not norm_vector(
        np.zeros(4, np.float32), False
    ).any()


def test_features_that_are_no_multiple_of_the_lanes_are_a_typed_error():
    with pytest.raises(LoweringError, match="multiple"):
        pack_units(np.zeros((4, 10), np.uint16))


R = Region(0, 64, 0, 8, 1, 0, 64)


@pytest.mark.parametrize(
    "other, hit",
    [
        (Region(0, 64, 0, 8, 1, 0, 64), True),
        (Region(0, 64, 8, 16, 1, 0, 64), False),
        (Region(0, 64, 0, 8, 1, 64, 128), False),
        (Region(64 * 64 * 8, 64, 0, 8, 1, 0, 64), False),
        (Region(128, 32, 0, 2, 1, 0, 32), True),
        (Region(0, 64, 3, 3, 1, 0, 64), False),
    ],
)
def test_overlap_of_regions(other, hit):
    assert overlaps(R, other) is hit and overlaps(other, R) is hit


def test_interleaved_rows_do_not_overlap():
    even, odd = Region(0, 64, 0, 8, 2, 0, 64), Region(0, 64, 1, 8, 2, 0, 64)
    assert not overlaps(even, odd) and overlaps(even, R) and overlaps(odd, R)


def test_overlap_never_misses_a_shared_byte():
    """Against sets of bytes, on random rectangles with equal and unequal geometry."""
    rng = np.random.default_rng(1)

    def draw() -> Region:
        stride = int(rng.choice([16, 32]))
        r0, c0 = int(rng.integers(0, 4)), int(rng.integers(0, stride - 1))
        return Region(
            64 * int(rng.integers(0, 6)),
            stride,
            r0,
            r0 + int(rng.integers(0, 4)),
            int(rng.integers(1, 3)),
            c0,
            int(rng.integers(c0 + 1, stride + 1)),
        )

    def cells(r: Region) -> set[int]:
        return {
            r.offset // 4 + row * r.stride + c for row in range(r.row0, r.row1, r.step) for c in range(r.col0, r.col1)
        }

    for _ in range(3000):
        a, b = draw(), draw()
        if cells(a) & cells(b):
            assert overlaps(a, b), (a, b)


def test_a_projection_writes_only_its_units_and_the_valid_columns():
    p = Packet(
        Opcode.LINEAR,
        {"x": 0, "weight": 64, "y": 128},
        {"row0": 0, "row1": 4, "row_step": 1, "unit0": 1, "unit1": 3, "k": 64, "n": 70, "x_stride": 64, "y_stride": 80},
    )
    write = [e.region for e in effects(p, 4) if e.mode == "w"]
    assert [(r.col0, r.col1) for r in write] == [(32, 70)]
    p.epilogue = Epilogue.GATED_SILU
    assert [(e.region.col0, e.region.col1) for e in effects(p, 4) if e.mode == "w"] == [(16, 48)]


def qkv(head0: int, head1: int) -> Packet:
    return Packet(
        Opcode.QKV,
        {"x": 0, "weight": 64, "y": 4096, "kv": 1 << 20},
        {
            "row0": 0,
            "row1": 2,
            "row_step": 1,
            "head0": head0,
            "head1": head1,
            "k": 64,
            "num_heads": 4,
            "num_kv_heads": 2,
            "head_dim": 32,
            "x_stride": 64,
            "y_stride": 128,
        },
    )


def attention(head0: int, head1: int) -> Packet:
    return Packet(
        Opcode.ATTENTION,
        {"q": 4096, "kv": 1 << 20, "y": 8192},
        {
            "row0": 0,
            "row1": 2,
            "row_step": 1,
            "head0": head0,
            "head1": head1,
            "num_heads": 4,
            "num_kv_heads": 2,
            "head_dim": 32,
            "q_stride": 128,
            "y_stride": 128,
        },
    )


@pytest.mark.parametrize(
    "heads, reader, hit",
    [
        ((0, 2), (0, 2), True),
        ((0, 2), (2, 4), False),
        ((4, 5), (0, 2), True),
        ((5, 6), (0, 2), False),
        ((6, 7), (0, 2), True),
        ((7, 8), (2, 4), True),
    ],
)
def test_attention_depends_on_exactly_the_heads_it_reads(heads, reader, hit):
    """q heads 0..3, k heads 4..5, v heads 6..7; q heads 0,1 use kv head 0."""
    writes = [e.region for e in effects(qkv(*heads), 4) if e.mode == "w"]
    reads = [e.region for e in effects(attention(*reader), 4) if e.mode == "r"]
    assert any(overlaps(a, b) for a in writes for b in reads) is hit


def test_sample_reads_the_valid_columns_only():
    p = Packet(
        Opcode.SAMPLE,
        {"logits": 0},
        {"row0": 0, "row1": 1, "row_step": 1, "vocab": 50, "logits_stride": 64},
        domain=Domain.SAMPLES,
    )
    assert effects(p, 1)[0].region.col1 == 50


def test_packets_that_append_different_rows_do_not_conflict_but_every_reader_meets_both():
    even, odd = qkv(0, 8), qkv(0, 8)
    even.dims |= {"row0": 0, "row1": 8, "row_step": 2}
    odd.dims |= {"row0": 1, "row1": 8, "row_step": 2}
    writes = [[e.region for e in effects(p, 4) if e.mode == "w" and e.operand == "kv"] for p in (even, odd)]
    reads = [e.region for e in effects(attention(0, 4), 4) if e.mode == "r" and e.operand == "kv"]
    assert not any(overlaps(a, b) for a in writes[0] for b in writes[1])
    assert all(any(overlaps(w, r) for w in side for r in reads) for side in writes)

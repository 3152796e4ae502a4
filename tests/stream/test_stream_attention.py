"""STREAM_ATTENTION as hand-made packets: splits, page edges, windows, rows of one step, appending."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from op_rig import (
    BLOCKS,
    MAX_CTX,
    SLOTS,
    ULP,
    UNWRITTEN,
    Rig,
    bits,
    floats,
    found_vec,
    wide,
)
from stream_layouts import (
    pack_pages,
    partial_words,
    unpack_pages,
    unpack_partial,
)

from plow.packet.abi import Flag, Opcode
from plow.packet.codec import Packet

HEADS, KV_HEADS, HD = 4, 2, 64
GROUP, STRIDE = HEADS // KV_HEADS, (HEADS + 2 * KV_HEADS) * HD


class Sequences:
    """Random q, k and v (f32, before norm and rope) of all positions of all slots, and what attention makes of them."""

    def __init__(self, flags: Flag, window: int) -> None:
        self.flags, self.window = flags, window
        self.qkv = floats(SLOTS, MAX_CTX, STRIDE, seed=5)
        self.q_norm, self.k_norm = floats(HD, seed=6), floats(HD, seed=7)
        angle = np.arange(MAX_CTX)[:, None] * 0.5 ** np.arange(HD // 2)
        self.rope = np.concatenate([np.cos(angle), np.sin(angle)], axis=1).astype(np.float32)

    def turned(self, x: np.ndarray, position: int, weight: np.ndarray) -> np.ndarray:
        if self.flags & Flag.QK_NORM:
            x = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + np.float32(1e-5)) * weight
        if self.flags & Flag.ROPE:
            cos, sin = self.rope[position, : HD // 2], self.rope[position, HD // 2 :]
            a, b = x[..., : HD // 2], x[..., HD // 2 :]
            x = np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)
        return wide(bits(x))

    def heads(self, slot: int, position: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """q [4, 64], k and v [2, 64] as attention sees them."""
        x = self.qkv[slot, position].reshape(-1, HD)
        q, k, v = x[:HEADS], x[HEADS : HEADS + KV_HEADS], x[HEADS + KV_HEADS :]
        return self.turned(q, position, self.q_norm), self.turned(k, position, self.k_norm), wide(bits(v))

    def want(self, slot: int, position: int) -> np.ndarray:
        """[4 * 64]."""
        q = self.heads(slot, position)[0]
        start = max(0, position + 1 - self.window) if self.window else 0
        seen = [self.heads(slot, j) for j in range(start, position + 1)]
        k, v = (np.stack([h[i] for h in seen]).repeat(GROUP, axis=1) for i in (1, 2))  # [position, head, 64]
        scores = np.einsum("hd,phd->hp", q, k) / 8
        e = np.exp(scores - scores.max(axis=1, keepdims=True))
        return np.einsum("hp,phd->hd", e / e.sum(axis=1, keepdims=True), v).reshape(-1)

    def cache(self, rig: Rig, positions: Sequence[int], slots: Sequence[int]) -> np.ndarray:
        """u16 [blocks, kv heads, 16, 2, 64]: what was appended before this step; the rest is NaN."""
        cells = np.full((BLOCKS, KV_HEADS, 16, 2, HD), 0x7FC0, np.uint16)
        for slot in set(slots):
            for j in range(min(p for p, s in zip(positions, slots, strict=True) if s == slot)):
                _, k, v = self.heads(slot, j)
                block = rig.state.batch.page_table[slot, j // 16]
                cells[block, :, j % 16, 0], cells[block, :, j % 16, 1] = bits(k), bits(v)
        return cells


def attend(seqs: Sequences, positions: Sequence[int], slots: Sequence[int], splits: int, cols: int = 8,
           split_pages: int = 1, drop: int = -1, only: int = -1) -> tuple[Rig, list[str], np.ndarray]:
    """One step of attention over all rows and kv heads: rig, what is still polled, y [rows, 256].

    drop: a packet that is left out; only: the one row whose packets run. y is empty with either, or if a packet polls.
    """
    rig = Rig(positions, slots, split_pages=split_pages)
    n = len(positions)
    rows = np.full((cols, STRIDE), UNWRITTEN).view(np.float32)
    rows[:n] = seqs.qkv[list(slots), list(positions)]
    cells = seqs.cache(rig, positions, slots)
    kv = rig.const(pack_pages(cells[:, :, :, 0], cells[:, :, :, 1]))
    words = partial_words(GROUP, HD)
    partials, y = rig.hole(cols * KV_HEADS * splits * words), rig.hole(HEADS * HD * cols // 2)
    rig.partials = partials + 4 * words * np.arange(cols * KV_HEADS * splits).reshape(cols, KV_HEADS, splits)
    operands = {"qkv": rig.given(rows), "q_norm": rig.const(seqs.q_norm), "k_norm": rig.const(seqs.k_norm),
                "rope": rig.const(seqs.rope), "kv": kv, "partials": partials, "y": y}
    packets = [Packet(Opcode.STREAM_ATTENTION, operands, {
        "row": row, "kv_head": h, "split": s, "splits": splits, "num_heads": HEADS, "num_kv_heads": KV_HEADS,
        "head_dim": HD, "window": seqs.window, "qkv_stride": STRIDE, "cols": cols,
    }, {"scale": 0.125, "qk_eps": 1e-5}, seqs.flags) for row in range(cols) for h in range(KV_HEADS)
        for s in reversed(range(splits))]
    if drop >= 0:
        del packets[drop]
    if only >= 0:
        packets = [p for p in packets if p.dims["row"] == only]
    left = rig.run(*packets)
    if left or drop >= 0:
        return rig, left, np.zeros(0)
    for t in range(n) if only < 0 else [only]:
        slot, position = slots[t], positions[t]
        _, k, v = seqs.heads(slot, position)
        block = rig.state.batch.page_table[slot, position // 16]
        cells[block, :, position % 16, 0], cells[block, :, position % 16, 1] = bits(k), bits(v)
        assert (rig.words(partials, cols, KV_HEADS, splits, words, other=True)[t, ..., : GROUP * (HD + 2)]
                == UNWRITTEN).all(), "partials are re-armed, used or not"
    pages = rig.arena[kv : kv + cells.nbytes].view(np.uint16).reshape(BLOCKS, KV_HEADS, -1)
    found_k, found_v = unpack_pages(pages)
    assert (found_k == cells[:, :, :, 0]).all() and (found_v == cells[:, :, :, 1]).all(), "only own rows are appended"
    if only >= 0:
        return rig, left, np.zeros(0)
    return rig, left, found_vec(rig, y, HEADS * HD, cols, by_row=True)


FLAGS = pytest.mark.parametrize("flags", [Flag(0), Flag.QK_NORM | Flag.ROPE])
CLOSE = {"rtol": 2 * ULP, "atol": 0.01}


@FLAGS
@pytest.mark.parametrize("window", [0, 17])
@pytest.mark.parametrize("position", [0, 1, 15, 16, 17, 31, 32, 63])
def test_attention_with_any_number_of_splits_is_the_formula(position, window, flags):
    seqs = Sequences(flags, window)
    found = [attend(seqs, [position], [2], splits, cols, pages)[2]
             for splits, cols, pages in ((1, 1, 1), (2, 1, 1), (4, 8, 1), (4, 8, 8))]
    for y in found:
        np.testing.assert_allclose(y[0], seqs.want(2, position), **CLOSE)


@FLAGS
@pytest.mark.parametrize("window", [0, 4, 20])
@pytest.mark.parametrize("start", [0, 13, 16, 30])
def test_rows_of_a_prompt_chunk_see_each_other_as_if_they_went_one_by_one(start, window, flags):
    seqs = Sequences(flags, window)
    chunk = [start + i for i in (2, 0, 4, 1, 3)]  # in any order
    _, _, together = attend(seqs, chunk, [1] * 5, splits=2)
    for t, position in enumerate(chunk):
        np.testing.assert_allclose(together[t], seqs.want(1, position), **CLOSE)
        np.testing.assert_allclose(together[t], attend(seqs, [position], [1], splits=2)[2][0], **CLOSE)


@pytest.mark.parametrize("row", [0, 1, 2])
def test_a_row_appends_its_own_keys_and_values_only(row):
    assert attend(Sequences(Flag.ROPE, 0), [15, 16, 17], [1] * 3, splits=2, only=row)[1] == []


def test_rows_of_several_sequences_do_not_mix():
    seqs = Sequences(Flag.ROPE, 0)
    positions, slots = [40, 7, 8, 16, 0], [3, 0, 0, 1, 2]
    _, _, y = attend(seqs, positions, slots, splits=4)
    for t in range(5):
        np.testing.assert_allclose(y[t], seqs.want(slots[t], positions[t]), **CLOSE)


@pytest.mark.parametrize(("split_pages", "edges"), [(1, (0, 16, 32, 37)), (2, (0, 32, 37))])
def test_a_partial_is_the_maximum_mass_and_sums_of_whole_pages_in_powers_of_two(split_pages, edges):
    """37 cached positions in 4 parts; the step's own row belongs to split 0. Probabilities are rounded, masses not."""
    seqs = Sequences(Flag.ROPE, 0)
    rig, _, _ = attend(seqs, [37], [1], splits=4, split_pages=split_pages)
    words, places = partial_words(GROUP, HD), rig.partials.reshape(-1, 4)[0]
    q = seqs.heads(1, 37)[0][:GROUP]
    for part, (start, end) in enumerate(pairwise(edges)):
        seen = [*range(start, end), *([37] if part == 0 else [])]
        k, v = (np.stack([seqs.heads(1, j)[i][0] for j in seen]) for i in (1, 2))
        scores = q @ k.T * np.float32(0.125 * math.log2(math.e))
        e = np.exp2(scores - scores.max(axis=1, keepdims=True))
        found = rig.words(int(places[part]), words).view(np.float32)
        sums, top, mass = unpack_partial(found, GROUP, HD)
        np.testing.assert_allclose(top, scores.max(axis=1), rtol=1e-5)
        np.testing.assert_allclose(mass, e.sum(axis=1), rtol=1e-5)
        np.testing.assert_allclose(sums, wide(bits(e)) @ v, rtol=1e-4, atol=1e-3)
    for part in range(len(edges) - 1, 4):
        assert (rig.words(int(places[part]), words) == UNWRITTEN).all()


def test_a_merge_waits_for_the_partials_of_every_used_part():
    seqs = Sequences(Flag(0), 0)
    for drop in (0, 1, 2, 3):  # one of four splits of row 0, kv head 0
        assert attend(seqs, [63], [0], splits=4, cols=1, drop=drop)[1] == ["partials"] * 3
    assert attend(seqs, [20], [0], splits=4, cols=1, drop=0)[1] == [], "split 3 has no pages and nobody waits for it"

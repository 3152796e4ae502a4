"""ATTENTION over paged KV: page, window, chunk and tile borders, and the bits of a row in any company."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import pytest
from rig import Lib, Rig, Rng, page_table, step, stride

from plow.packet.abi import KV_BLOCK, Opcode
from plow.packet.codec import Packet
from plow.runtime.step import StepBatch


@dataclass
class Case:
    """Two sequences with keys and values at positions 0..context-1; the bytes of all later positions are NaN."""

    heads: int
    kv_heads: int
    head_dim: int
    k: np.ndarray
    v: np.ndarray
    q: np.ndarray
    batch: StepBatch
    window: int = 0
    softcap: float = 0.0
    scale: float = 0.3

    @classmethod
    def make(cls, rng: Rng, positions: list[int], heads: int, kv_heads: int, head_dim: int,
             slots: list[int] | None = None, **kw: float) -> Case:
        """Rows at the given positions; every sequence is written up to the last of them."""
        context, t = max(positions) + 1, len(positions)
        k, v = (rng.standard_normal((2, context, kv_heads, head_dim)).astype(np.float32) for _ in "kv")
        batch = step(t, positions=positions, slots=slots or [0] * t, pages=page_table(rng, 2, context + 20))
        q = rng.standard_normal((t, heads * head_dim)).astype(np.float32)
        return cls(heads, kv_heads, head_dim, k, v, q, batch, **kw)

    def region(self) -> np.ndarray:
        blocks = np.full((self.batch.page_table.size, 2, self.kv_heads, KV_BLOCK * self.head_dim), np.nan, np.float32)
        for slot, pages in enumerate(self.batch.page_table):
            for position in range(self.k.shape[1]):
                block, at = blocks[pages[position // KV_BLOCK]], position % KV_BLOCK
                block[0].reshape(self.kv_heads, self.head_dim, KV_BLOCK)[:, :, at] = self.k[slot, position]
                block[1].reshape(self.kv_heads, KV_BLOCK, self.head_dim)[:, at] = self.v[slot, position]
        return blocks

    def run(self, lib: Lib, cuts: tuple[int, ...] = (), row_step: int = 1) -> np.ndarray:
        """y rows, one packet a range of heads and residue of row_step."""
        rig, (t, width) = Rig(lib, bytes=1 << 26), self.q.shape
        operands = {"q": rig.rows(self.q), "kv": rig.put(self.region()), "y": rig.empty(t, width)}
        dims = {"row1": t, "row_step": row_step, "num_heads": self.heads, "num_kv_heads": self.kv_heads,
                "head_dim": self.head_dim, "window": self.window, "q_stride": stride(width), "y_stride": stride(width)}
        rig.run([Packet(Opcode.ATTENTION, operands, dims | {"row0": r, "head0": a, "head1": b},
                        {"scale": self.scale, "softcap": self.softcap})
                 for r in range(row_step) for a, b in pairwise((0, *cuts, self.heads))], self.batch)
        return rig.view(operands["y"], t, width)

    def alone(self, row: int) -> Case:
        b = self.batch
        return replace(self, q=self.q[row:row + 1], batch=replace(
            b, tokens=b.tokens[row:row + 1], positions=b.positions[row:row + 1], slots=b.slots[row:row + 1]))

    def expected(self) -> np.ndarray:
        out = np.zeros(self.q.shape)
        for t, (position, slot) in enumerate(zip(self.batch.positions, self.batch.slots, strict=True)):
            start = max(0, position + 1 - self.window) if self.window else 0
            for h in range(self.heads):
                g, cols = h // (self.heads // self.kv_heads), slice(h * self.head_dim, (h + 1) * self.head_dim)
                s = self.k[slot, start:position + 1, g].astype(np.float64) @ self.q[t, cols] * self.scale
                s = self.softcap * np.tanh(s / self.softcap) if self.softcap else s
                p = np.exp(s - s.max())
                out[t, cols] = p / p.sum() @ self.v[slot, start:position + 1, g]
        return out


def check(case: Case, lib: Lib) -> None:
    np.testing.assert_allclose(case.run(lib)[:, :case.q.shape[1]], case.expected(), atol=2e-5)


@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"),
                         [(1, 1, 16), (3, 1, 64), (4, 4, 80), (4, 1, 256), (8, 2, 128), (16, 1, 32), (26, 1, 16)])
def test_attention_matches_float64_for_every_grouping(lib: Lib, rng: Rng, heads: int, kv_heads: int,
                                                      head_dim: int) -> None:
    check(Case.make(rng, [0, 14, 15, 16, 17, 31, 32, 33, 70], heads, kv_heads, head_dim), lib)


@pytest.mark.parametrize("position", [510, 511, 512, 513, 1030])
def test_contexts_around_a_chunk_border_match_float64(lib: Lib, rng: Rng, position: int) -> None:
    check(Case.make(rng, [position], 2, 1, 16), lib)


@pytest.mark.parametrize("window", [1, 2, 15, 16, 17, 40, 600])
def test_a_window_hides_older_positions(lib: Lib, rng: Rng, window: int) -> None:
    check(Case.make(rng, [0, 1, 15, 16, 39, 40, 41, 66, 530], 3, 1, 32, window=window), lib)


def test_softcap_bounds_the_scores(lib: Lib, rng: Rng) -> None:
    case = Case.make(rng, [3, 40], 4, 2, 64, softcap=2.0, scale=1.0)
    check(case, lib)
    assert np.abs(case.expected() - replace(case, softcap=0.0).expected()).max() > 1e-2, "this data must feel the cap"


def test_sequences_do_not_see_each_other(lib: Lib, rng: Rng) -> None:
    check(Case.make(rng, [20, 21, 5, 40, 6], 4, 2, 32, slots=[0, 0, 1, 0, 1]), lib)


@pytest.mark.parametrize(("heads", "kv_heads"), [(3, 1), (4, 4), (9, 3)])
@pytest.mark.parametrize("window", [0, 20])
def test_a_prompt_row_has_the_bits_of_a_decoded_row(lib: Lib, rng: Rng, heads: int, kv_heads: int, window: int) -> None:
    """Also where the tile spans a chunk border and where rows of a tile see different windows."""
    case = Case.make(rng, [*range(13, 40), *range(505, 520)], heads, kv_heads, 32, window=window)
    together = case.run(lib).copy()
    for row in (0, 1, 3, 20, 27, 33, 34, 35, 41):
        assert np.array_equal(case.alone(row).run(lib)[0].view(np.uint32), together[row].view(np.uint32)), row


@pytest.mark.parametrize("row_step", [2, 3])
def test_cutting_rows_and_heads_into_packets_changes_no_bit(lib: Lib, rng: Rng, row_step: int) -> None:
    case = Case.make(rng, list(range(30, 50)), 6, 2, 64)
    assert np.array_equal(case.run(lib).view(np.uint32), case.run(lib, cuts=(1, 4), row_step=row_step).view(np.uint32))


def test_large_scores_do_not_overflow(lib: Lib, rng: Rng) -> None:
    check(Case.make(rng, [30, 600], 2, 1, 64, scale=40.0), lib)


def test_a_nan_in_a_visible_key_is_not_hidden(lib: Lib, rng: Rng) -> None:
    case = Case.make(rng, [20], 2, 1, 16)
    case.k[0, 4, 0, 3] = np.nan
    assert np.isnan(case.run(lib)[0]).all()


def test_attention_gives_the_same_bits_in_all_widths(libs: dict[str, Lib], rng: Rng) -> None:
    case = Case.make(rng, [*range(500, 520)], 6, 2, 80, softcap=5.0, window=300)
    first, *others = (case.run(lib).copy() for lib in libs.values())
    assert all(np.array_equal(first.view(np.uint32), y.view(np.uint32)) for y in others)

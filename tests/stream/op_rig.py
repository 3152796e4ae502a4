"""One step of hand-made STREAM packets on a small arena, without a compiler."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
from stream_layouts import (
    pack_ssq,
    pack_state,
    pack_vec,
    unpack_vec,
)

from plow.packet.codec import Packet
from plow.runtime.numpy_published import StreamState
from plow.runtime.numpy_vm import EXECUTE
from plow.runtime.step import Limits, StepBatch

PLAIN, COPY, CONST = 1 << 16, 1 << 17, 1 << 20
PUBLISHED, CONSTANTS = PLAIN, PLAIN + 2 * COPY
UNWRITTEN, JUNK = np.uint32(0xFFFFFFFF), np.uint32(0x01010101)
MAX_CTX, SLOTS, BLOCKS = 64, 4, 16
ULP = 2.0**-7
"""Relative distance of neighbouring bf16 values, at most."""


def floats(*shape: int, seed: int = 0) -> np.ndarray:
    """f32 values that bf16 holds exactly."""
    x = np.random.default_rng([seed, *shape]).standard_normal(shape)
    return x.astype(ml_dtypes.bfloat16).astype(np.float32)


def bits(x: np.ndarray) -> np.ndarray:
    return np.asarray(x, np.float32).astype(ml_dtypes.bfloat16).view(np.uint16)


def wide(x: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(x, np.uint16).view(ml_dtypes.bfloat16).astype(np.float32)


def limits(vocab: int) -> dict[str, int]:
    return {"max_ctx": MAX_CTX, "max_slots": SLOTS, "max_rows": 8, "max_samples": 8, "num_kv_blocks": BLOCKS,
            "kv_block": 16, "vocab_size": vocab, "num_layers": 1, "blocks_per_seq": MAX_CTX // 16}


class Memory:
    """An arena that hands out addresses: plain | published copy 0 | copy 1 | constants and KV pages."""

    def __init__(self) -> None:
        self.arena = np.zeros(CONSTANTS + CONST, np.uint8)
        self._next = {"plain": 0, "published": PUBLISHED, "const": CONSTANTS}

    def reserve(self, segment: str, size: int) -> int:
        at = self._next[segment]
        self._next[segment] += size + -size % 64
        return at

    def store(self, at: int, array: np.ndarray) -> int:
        self.arena[at : at + array.nbytes] = np.ascontiguousarray(array).view(np.uint8).reshape(-1)
        return at

    def const(self, array: np.ndarray) -> int:
        return self.store(self.reserve("const", array.nbytes), array)


class Rig(Memory):
    """One step of hand-made packets. This step's copy starts unwritten, the other one holds JUNK."""

    def __init__(self, positions: Sequence[int], slots: Sequence[int] = (), tokens: Sequence[int] = (), step: int = 1,
                 first: bool = True, split_pages: int = 1, vocab: int = 64) -> None:
        super().__init__()
        n = len(positions)
        table = np.random.default_rng(1).permutation(BLOCKS).reshape(SLOTS, -1)
        batch = StepBatch.greedy(tokens or [0] * n, positions, slots or [0] * n, range(n), table)
        self.state = StreamState(self.arena, Limits(**limits(vocab)), batch, np.full(n, -1, np.int32), copy_bytes=COPY,
                                 plain=(0, PLAIN), step=step, first=first, split_pages=split_pages)
        self.partials = np.zeros(0, np.int64)
        """Addresses of partials [row, kv head, split], once attention has some."""
        self.now, self.other = (COPY * (step & 1), COPY * (1 - (step & 1)))
        for copy, word in ((self.now, UNWRITTEN), (self.other, JUNK)):
            self.arena[PUBLISHED + copy : PUBLISHED + copy + COPY].view(np.uint32)[:] = word

    def given(self, array: np.ndarray) -> int:
        """A buffer that an earlier packet of this step has published."""
        at = self.reserve("published", array.nbytes)
        self.store(at + self.now, array)
        return at

    def vec(self, x: np.ndarray, cols: int) -> int:
        """x: [rows, k]; columns without a row stay unwritten."""
        packed = np.full((cols, x.shape[1]), 0xFFFF, np.uint16)
        packed[: len(x)] = bits(x)
        return self.given(pack_vec(packed))

    def ssq(self, x: np.ndarray, cols: int) -> int:
        packed = np.full((x.shape[1] // 16, cols), UNWRITTEN).view(np.float32)
        packed[:, : len(x)] = pack_ssq(x)
        return self.given(packed)

    def own(self, x: np.ndarray) -> int:
        """State of x [rows, k], written by worker 0 in this step."""
        at = self.reserve("plain", 32 * x.shape[1])
        self.store(at, pack_state(np.pad(x, ((0, 8 - len(x)), (0, 0)))))
        self.state.owner[at // 4 : at // 4 + 8 * x.shape[1]] = 1
        return at

    def hole(self, words: int) -> int:
        return self.reserve("published", 4 * words)

    def plain(self, words: int) -> int:
        return self.reserve("plain", 4 * words)

    def words(self, at: int, *shape: int, other: bool = False) -> np.ndarray:
        start = at + (self.other if other else self.now)
        return self.arena[start : start + 4 * math.prod(shape)].view(np.uint32).reshape(shape).copy()

    def run(self, *packets: Packet) -> list[str]:
        """Run the packets side by side as far as they come; operands that one of them still polls."""
        begun = [(EXECUTE[p.opcode](self.state, p) or iter(())) for p in packets]
        polls: list[Any] = [[] for _ in packets]
        going = True
        while going:
            going = False
            for i, needs in enumerate(polls):
                if needs is not None and all(need.met() for need in needs):
                    polls[i], going = next(begun[i], None), True
        return [need.operand for needs in polls if needs for need in needs if not need.met()]

    def published(self, at: int, shape: tuple[int, ...], active: Any, by_row: bool = False) -> np.ndarray:
        """Words of a buffer; checks that exactly `active` are written and that all are re-armed.

        by_row: packets write rows and not columns; those without a row do nothing, so that the rest stays as it was.
        """
        now, other = self.words(at, *shape), self.words(at, *shape, other=True)
        active = np.broadcast_to(active, shape)
        assert ((now != UNWRITTEN) == active).all(), "written: active columns only"
        assert (other[active | (not by_row)] == UNWRITTEN).all(), "every column is re-armed"
        assert not by_row or (other[~active] == JUNK).all()
        return now


def found_vec(rig: Rig, at: int, k: int, cols: int, by_row: bool = False) -> np.ndarray:
    """f32 [rows, k] of a vec that was published for the rows of the step."""
    n = rig.state.batch.n_rows
    words = rig.published(at, (k // 32, cols, 16), np.arange(cols)[:, None] < n, by_row)
    return wide(unpack_vec(words.view(np.uint16)))[:n]

"""One step of the model as the backends see it: StepBatch in, sampled tokens out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from plow.errors import BundleError, RequestError

if TYPE_CHECKING:
    from plow.runtime.bundle import Bundle


@dataclass(frozen=True)
class Limits:
    """What a bundle was compiled for (`limits` of the packet header)."""

    max_ctx: int
    """Positions a sequence may hold."""
    max_slots: int
    """Sequences that may be live at once."""
    max_rows: int
    """Rows of the largest program."""
    max_samples: int
    num_kv_blocks: int
    kv_block: int
    """Positions of a KV block."""
    vocab_size: int
    """Columns of the logits."""
    num_layers: int
    blocks_per_seq: int
    """Width of the page table."""

    @classmethod
    def from_header(cls, header: Mapping[str, Any], where: str = "model.pkt") -> Limits:
        """Raises BundleError naming the missing or non-integer entry."""
        limits = header.get("limits")
        values: dict[str, int] = {}
        for f in fields(cls):
            value = limits.get(f.name) if isinstance(limits, Mapping) else None
            if not isinstance(value, int) or value < 1:
                raise BundleError(f"header entry limits.{f.name} is {value!r}", where, "rebuild the bundle with plowc")
            values[f.name] = value
        return cls(**values)

    def blocks_for(self, positions: int) -> int:
        return -(-positions // self.kv_block)


@dataclass
class StepBatch:
    """Data of one step. n_rows <= rows and n_samples <= samples of the program that runs it.

    tokens, positions, slots: i32 [n_rows]; sample_rows: i32 [n_samples], the rows whose logits are wanted;
    page_table: i32 [max_slots, blocks_per_seq], block of position p of a slot = page_table[slot, p // 16], -1 = none;
    temperature (0 = greedy), top_p (1 = off), min_p (0 = off): f32 [n_samples]; top_k (0 = off): i32; seed: u64.
    """

    tokens: np.ndarray
    positions: np.ndarray
    slots: np.ndarray
    sample_rows: np.ndarray
    page_table: np.ndarray
    temperature: np.ndarray
    top_k: np.ndarray
    top_p: np.ndarray
    min_p: np.ndarray
    seed: np.ndarray

    @classmethod
    def greedy(cls, tokens: Sequence[int] | np.ndarray, positions: Sequence[int] | np.ndarray,
               slots: Sequence[int] | np.ndarray, sample_rows: Sequence[int] | np.ndarray,
               page_table: np.ndarray) -> StepBatch:
        """A batch whose samples are all arg-maxima."""
        n = len(sample_rows)
        i32 = np.int32
        return cls(np.array(tokens, i32), np.array(positions, i32), np.array(slots, i32), np.array(sample_rows, i32),
                   np.ascontiguousarray(page_table, i32), np.zeros(n, np.float32), np.zeros(n, i32),
                   np.ones(n, np.float32), np.zeros(n, np.float32), np.zeros(n, np.uint64))

    @property
    def n_rows(self) -> int:
        return len(self.tokens)

    @property
    def n_samples(self) -> int:
        return len(self.sample_rows)

    def check(self, limits: Limits, rows: int, samples: int, n_steps: int = 1) -> None:
        """Everything an interpreter relies on without looking; raises RequestError naming the row.

        Called by every backend before a step: an index out of range must not become an address.
        """
        if not 1 <= self.n_rows <= rows or not 0 <= self.n_samples <= samples or n_steps < 1:
            raise RequestError(f"{self.n_rows} rows, {self.n_samples} samples, {n_steps} steps do not fit a program of "
                               f"{rows} rows, {samples} samples", "StepBatch", "pick a larger program")
        if self.page_table.shape != (limits.max_slots, limits.blocks_per_seq):
            raise RequestError(f"page table is {self.page_table.shape}", "StepBatch",
                               f"shape it ({limits.max_slots}, {limits.blocks_per_seq})")
        if n_steps > 1 and not np.array_equal(self.sample_rows, np.arange(self.n_rows)):
            raise RequestError("several steps in one call need a pure decode batch", "StepBatch",
                               "sample_rows must equal arange(n_rows)")
        self._check_range("token", self.tokens, limits.vocab_size)
        self._check_range("slot", self.slots, limits.max_slots)
        self._check_range("position", self.positions, limits.max_ctx)
        self._check_range("sample row", self.sample_rows, self.n_rows)
        self._check_blocks(self.positions, limits)
        if n_steps > 1:
            last = self.positions + np.int32(n_steps - 1)
            self._check_range("last position", last, limits.max_ctx)
            self._check_blocks(last, limits)

    def _check_blocks(self, positions: np.ndarray, limits: Limits) -> None:
        """Blocks exist, and no two rows write the same cell: packets that append different rows are not ordered."""
        blocks = self.page_table[self.slots, positions // limits.kv_block]
        self._check_range("KV block", blocks, limits.num_kv_blocks)
        if self.n_rows > 1:
            cells = blocks.astype(np.int64) * limits.kv_block + positions % limits.kv_block
            if len(np.unique(cells)) < self.n_rows:
                raise RequestError("two rows are the same position of a sequence", "StepBatch", "one row a position")

    @staticmethod
    def _check_range(what: str, values: np.ndarray, end: int) -> None:
        # Negative numbers are large as unsigned ones, so one maximum decides; this runs in every step.
        if len(values) and int(values.view(np.uint32).max()) >= end:
            bad = (values < 0) | (values >= end)
            row = int(np.argmax(bad))
            raise RequestError(f"{what} {int(values[row])} of row {row} is outside 0..{end - 1}", "StepBatch")


class Backend(Protocol):
    """Executes the packet programs of one bundle on one device. Owns the arena, KV blocks included.

    steps_per_call: decode steps of a call at most; more than one where the time between two calls counts.
    """

    steps_per_call: int

    @property
    def bundle(self) -> Bundle: ...

    @property
    def arena(self) -> np.ndarray:
        """u8 [bytes]: weights, activations and KV blocks."""
        ...

    def run(self, program: int, batch: StepBatch, n_steps: int = 1) -> np.ndarray:
        """Sampled tokens, i32 [n_steps, n_samples].

        n_steps > 1 needs a pure decode batch (sample_rows == arange(n_rows)): sampled tokens are fed back on the
        device and positions advance. Raises StuckDependency when a wait runs into its limit; `recover` before the next.
        """
        ...

    def recover(self) -> bool:
        """Be ready again after a failed run; whether keys and values of the rows outside it are still there. Raises
        PlowError when that is impossible."""
        ...

    def logits(self, program: int, n_samples: int) -> np.ndarray:
        """f32 [n_samples, vocab_size]: view of the last step's logits, valid until the next run."""
        ...

    def close(self) -> None: ...

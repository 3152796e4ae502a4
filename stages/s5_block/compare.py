"""The comparison: every operator at every grid point, rows of a batch and chunks of a prompt bit by bit."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from stages.s5_block.reference import Rows as Values
from stages.s5_block.rig import Rig, Rows, at
from stages.s5_block.subject import BATCHES, MAX_BATCH
from stages.substeps import row_error

CHUNK = (40, 33)
"""(first position, rows) of the prompt step that is looked into: it starts and ends inside a page, and the program has
more rows."""
UNEVEN = (7, 33, 64, 1, 20, 64)
"""Chunk sizes of the bit-equality test."""


@dataclass
class Found:
    """errors: value name -> (largest row error, where). seen: (where, positions, values) of slot 0, to hold against
    transformers later. The other fields count."""

    errors: dict[str, tuple[float, str]] = field(default_factory=dict)
    seen: list[tuple[str, list[int], Values]] = field(default_factory=list)
    points: int = 0
    rows_compared: int = 0
    rows_unequal: list[str] = field(default_factory=list)
    not_compared: set[str] = field(default_factory=set)

    def add(self, value: str, error: float, where: str) -> None:
        if not error < self.errors.get(value, (-1.0, ""))[0]:
            self.errors[value] = (error, where)

    def worst(self) -> tuple[float, str]:
        """(error, "value at point"); inf when nothing was compared."""
        if not self.errors:
            return float("inf"), "nothing was compared"
        value = max(self.errors, key=lambda v: self.errors[v][0])
        return self.errors[value][0], f"{value} at {self.errors[value][1]}"

    def first_above(self, order: list[str], limit: float) -> str:
        """The first value in program order that departs."""
        return next(
            (
                f"{v} at {self.errors[v][1]}: {self.errors[v][0]:.1e}"
                for v in order
                if v in self.errors and not self.errors[v][0] <= limit
            ),
            "",
        )


def grid(rig: Rig, contexts: list[int], want: list[Values], rows: list[int]) -> Found:
    """Batch x context, against the float64 values of each slot. rows: the positions that `want` holds, in its order."""
    found = Found()
    for context in contexts:
        for slot in range(MAX_BATCH):
            rig.prefill(slot, context - 1, (64,))
        slots = np.random.default_rng([rig.s.seed, context]).permutation(MAX_BATCH).tolist()
        alone = {slot: _one(rig, slot, context) for slot in slots}
        for batch in BATCHES:
            found.points += 1
            where = f"batch {batch}, context {context}"
            logits = rig.decode(slots[:batch], context)
            expect = np.array([want[s]["logits"][rows.index(context - 1)] for s in slots[:batch]])
            found.add("logits", row_error(expect, logits), where)
            _bits(rig, found, slots[:batch], context, logits, alone, where)
        observed = rig.observe(rig.program(MAX_BATCH), at(slots, context))
        expect_all = {v: np.array([want[s][v][rows.index(context - 1)] for s in slots]) for v in want[0]}
        where = f"batch {MAX_BATCH}, context {context}"
        _values(found, observed, expect_all, where)
        first = slots.index(0)
        found.seen.append((where, [context - 1], {v: x[first : first + 1] for v, x in observed.items()}))
        rig.filled = [context] * MAX_BATCH
    return found


def _one(rig: Rig, slot: int, context: int) -> tuple[np.ndarray, list[np.ndarray]]:
    """(logits, keys and values) of one row alone."""
    logits = rig.decode([slot], context)
    return logits[0], _kv_at(rig, slot, context)


def _kv_at(rig: Rig, slot: int, context: int) -> list[np.ndarray]:
    nodes = [i for i, n in enumerate(rig.s.fused.nodes) if "cache" in n.attrs]
    return [x for i in nodes for x in rig.kv(0, i, at([slot], context))]


def _bits(
    rig: Rig,
    found: Found,
    slots: list[int],
    context: int,
    logits: np.ndarray,
    alone: dict[int, tuple[np.ndarray, list[np.ndarray]]],
    where: str,
) -> None:
    for i, slot in enumerate(slots):
        row, kv = alone[slot]
        same = np.array_equal(row, logits[i]) and all(map(np.array_equal, kv, _kv_at(rig, slot, context)))
        found.rows_compared += 1
        if not same:
            found.rows_unequal.append(f"row {i} at {where}")


def _values(found: Found, observed: Values, expect: Values, where: str) -> None:
    for value, got in observed.items():
        if value in expect:
            found.add(value, row_error(expect[value], got), where)
        else:
            found.not_compared.add(value)


def against(seen: Found, want: Values, rows: list[int]) -> Found:
    """What slot 0 gave against other values at the same positions; rows: the positions that `want` holds."""
    found = Found()
    for where, positions, observed in seen.seen:
        at_rows = [rows.index(p) for p in positions]
        _values(found, observed, {v: want[v][at_rows[: len(x)]] for v, x in observed.items() if v in want}, where)
    return found


def chunk(rig: Rig, want: Values, rows: list[int], found: Found) -> None:
    """One prompt step of slot 0, operator by operator, in the program for prompts."""
    first, count = CHUNK
    rig.filled[0] = min(rig.filled[0], first)
    rig.prefill(0, first, (64,))
    positions = np.arange(first, first + count, dtype=np.int32)
    observed = rig.observe(len(rig.records) - 1, Rows(np.zeros(count, np.int32), positions))
    observed = {v: x for v, x in observed.items() if len(x) == count}
    at_rows = [rows.index(p) for p in positions.tolist()]
    where = f"prompt rows {first}..{first + count - 1}"
    found.points += 1
    found.seen.append((where, positions.tolist(), observed))
    _values(found, observed, {v: x[at_rows] for v, x in want.items() if v in observed}, where)


def chunks_unequal(rig: Rig, length: int) -> tuple[list[str], int]:
    """Slot 0 token by token against slot 1 in uneven chunks, same tokens: (what differs, arrays compared)."""
    rig.tokens[1, :length] = rig.tokens[0, :length]
    rig.filled[0] = rig.filled[1] = 0
    one, many = rig.prefill(0, length, (1,)), rig.prefill(1, length, UNEVEN)
    pairs = [("logits", one, many)]
    names = [
        f"{n.attrs['cache']} {side}" for n in rig.s.fused.nodes if "cache" in n.attrs for side in ("keys", "values")
    ]
    pairs += list(zip(names, rig.whole_kv(0, length), rig.whole_kv(1, length), strict=True))
    return [name for name, a, b in pairs if a is None or b is None or not np.array_equal(a, b)], len(pairs)

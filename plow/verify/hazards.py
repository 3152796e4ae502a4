"""Which packets must not overlap in time: RAW, WAR and WAW pairs, from the memory effects of the decoded packets.

Required order. Two packets conflict when their effects share bytes and at least one of them writes. The orders that
are listed are the cross-worker part of the transitive reduction of (conflict, program order):

  * a pair on one worker is ordered by the worker's list, and the model of checkpoint D says so, so it is not listed;
  * of the packets of one other worker that conflict with v only the last is listed: the earlier ones precede it in
    their list;
  * a pair that already follows from listed pairs and lists is not listed.

So every conflicting pair is listed or follows by chaining, and Lean's `Ordered` speaks about all such chains.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from plow.packet.abi import Opcode
from plow.packet.codec import Packet
from plow.packet.effects import Effect, Region, effects, overlaps

STEP_INPUTS = -(1 << 40)
"""Pseudo address of the step's tokens and positions, which live outside the arena. SAMPLE moves a row on to its next
token, so it must follow everything that reads the row's token or position."""
READS_STEP_INPUTS = (Opcode.EMBED, Opcode.QKV, Opcode.ROPE, Opcode.KV_APPEND, Opcode.ATTENTION)


@dataclass(frozen=True)
class Hazard:
    """Packet `before` must have finished when packet `after` starts (indices in the order of seq)."""

    before: int
    after: int
    kind: str
    """RAW, WAR or WAW"""
    operands: tuple[str, str]
    span: tuple[int, int]
    """Arena bytes that both touch (of the covering intervals)."""

    def where(self) -> str:
        lo, hi = self.span
        return "the step's tokens and positions" if lo < 0 else f"arena bytes {lo}..{hi}"


def packet_effects(p: Packet, num_kv_blocks: int) -> list[Effect]:
    """Effects on the arena and on the step's tokens and positions."""
    found = effects(p, num_kv_blocks)
    mode = "r" if p.opcode in READS_STEP_INPUTS else "w" if p.opcode == Opcode.SAMPLE else ""
    if mode:
        # Tokens are fed back only in pure decode steps, where sample s is row s, so rows and samples share one axis.
        rows = (p.dims["row0"], p.dims["row1"], p.dims["row_step"])
        found.append(Effect(mode, "tokens", Region(STEP_INPUTS, 1, *rows, 0, 1)))
    return found


class _Table:
    """All effects of a program as arrays, for a quick first selection by covering interval."""

    def __init__(self, per_packet: list[list[Effect]]) -> None:
        self.flat = [(i, e) for i, es in enumerate(per_packet) for e in es]
        spans = np.array([e.region.interval() for _, e in self.flat], np.int64).reshape(-1, 2)
        self.lo, self.hi = spans[:, 0], spans[:, 1]
        self.packet = np.array([i for i, _ in self.flat], np.int64)
        self.writes = np.array([e.mode == "w" for _, e in self.flat], bool)

    def candidates(self, v: int, e: Effect) -> np.ndarray:
        """Indices of effects of packets before v that may conflict with effect e of v."""
        lo, hi = e.region.interval()
        end = int(np.searchsorted(self.packet, v))
        near = (self.lo[:end] < hi) & (lo < self.hi[:end])
        return np.flatnonzero(near if e.mode == "w" else near & self.writes[:end])


def required(per_packet: list[list[Effect]], workers: list[int]) -> list[Hazard]:
    """The listed pairs (see the module's docstring), ordered by `after`.

    per_packet: effects of every packet in the order of seq; workers: the worker of every packet.
    """
    table = _Table(per_packet)
    worker = np.array(workers, np.int64)
    width = max(workers, default=0) + 1
    known = np.full((len(workers), width), -1, np.int64)  # known[v][w]: last packet of w that must precede v
    last: dict[int, int] = {}
    out: list[Hazard] = []
    for v, w in enumerate(workers):
        if w in last:
            known[v] = known[last[w]]
            known[v, w] = last[w]
        last[w] = v
        found = _latest_conflicts(table, per_packet[v], v, worker)
        for h in sorted(found.values(), key=lambda h: -h.before):
            if h.before > known[v, worker[h.before]]:
                out.append(h)
                known[v] = np.maximum(known[v], known[h.before])
                known[v, worker[h.before]] = h.before
    return out


def _latest_conflicts(table: _Table, mine: list[Effect], v: int, worker: np.ndarray) -> dict[int, Hazard]:
    """Per other worker, the last packet before v that conflicts with v."""
    found: dict[int, Hazard] = {}
    for e in mine:
        for k in table.candidates(v, e)[::-1]:
            u, other = table.flat[k]
            w = int(worker[u])
            if w == worker[v] or (w in found and found[w].before >= u) or not overlaps(other.region, e.region):
                continue
            (a0, a1), (b0, b1) = other.region.interval(), e.region.interval()
            kind = {"wr": "RAW", "rw": "WAR", "ww": "WAW"}[other.mode + e.mode]
            found[w] = Hazard(u, v, kind, (other.operand, e.operand), (max(a0, b0), min(a1, b1)))
    return found

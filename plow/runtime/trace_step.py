"""The marks of a traced step, packet by packet, and the critical path through its operators.

A packet has up to four marks, in this order: start (the consumers came to it), ready (its inputs and first weights
were there), done (its sums were made) and published (its results were written). What the epilogue does alone (embed,
norm, the greedy sample) has the last one only. An attention has exchanged its parts and published when its consumers
come to the next packet.

A worker that is through with a step starts the next one at once. So a step's first mark lies inside the step before,
and a worker's first start and last done are one period apart: a step is as long as that, and ends with its last
publication. Without waits (a diagnosis) workers drift apart, and the last step of a slow one has the memory to itself:
its times are no rate.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import fmean

import numpy as np

from plow.errors import PlowError
from plow.packet.abi import KV_BLOCK, Epilogue, Flag, Opcode
from plow.packet.codec import Packet, decode
from plow.packet.container import ProgramRecord
from plow.runtime.bench import weight_bytes
from plow.runtime.numpy_stream import SPLIT_PAGES

POINTS = ("start", "ready", "done", "published")
FAMILIES = {
    Opcode.STREAM_EMBED: "embed",
    Opcode.STREAM_NORM: "norm",
    Opcode.STREAM_ATTENTION: "attention",
    Opcode.STREAM_HEAD: "head",
    Opcode.STREAM_SAMPLE: "sample",
    Opcode.NOP: "nop",
}
READERS = {"attention": "o", "gate_up": "down"}
"""Family of a plain projection by the family that makes its input."""


class TraceError(PlowError):
    """A trace that is not one of this program's, or that lacks a packet."""

    exit_code = 1


@dataclass(frozen=True)
class Traced:
    """A packet of the traced step. bytes: weights, keys and values that it reads; start .. published: ns from the
    step's first mark, None where the packet has no such point."""

    packet: Packet
    node: str
    family: str
    bytes: int
    start: int | None
    ready: int | None
    done: int | None
    published: int | None

    @property
    def marks(self) -> tuple[int | None, ...]:
        return self.start, self.ready, self.done, self.published

    @property
    def end(self) -> int:
        return max(m for m in self.marks if m is not None)

    @property
    def name(self) -> str:
        return f"packet {self.packet.seq} {self.packet.opcode.name} {self.node}"

    @property
    def wait(self) -> int | None:
        return _between(self.start, self.ready)

    @property
    def work(self) -> int | None:
        return _between(self.ready, self.done)

    @property
    def publish(self) -> int | None:
        return _between(self.done, self.published)


def _between(a: int | None, b: int | None) -> int | None:
    return None if a is None or b is None else b - a


@dataclass(frozen=True)
class Leg:
    """A node's part of the critical path: from the last publication of the node before to its own, ns."""

    node: int
    family: str
    begin: int
    end: int


@dataclass(frozen=True)
class Step:
    """The traced step. workers: packets of each worker in the order of its list; begin, end: ns from the first mark."""

    rows: int
    nodes: Sequence[str]
    workers: list[list[Traced]]
    begin: int
    end: int

    @property
    def packets(self) -> list[Traced]:
        return [p for worker in self.workers for p in worker]

    @property
    def ns(self) -> int:
        return self.end - self.begin

    @property
    def legs(self) -> list[Leg]:
        """The critical path: begins with the step, ends with it, and has no gaps. A node that is through before its
        predecessor has no part in it."""
        ends: dict[tuple[int, Opcode], tuple[str, int]] = {}
        for p in self.packets:
            key = p.packet.node, p.packet.opcode
            ends[key] = p.family, max(p.end, ends[key][1] if key in ends else 0)
        legs, at = [], self.begin
        for key, (family, end) in sorted(ends.items()):
            legs.append(Leg(key[0], family, at, max(at, end)))
            at = legs[-1].end
        return legs


def step_of(record: ProgramRecord, nodes: Sequence[str], marks: np.ndarray, rows: int, context: int) -> Step:
    """The step that `marks` (u64 [workers, max_packets, 4] ns; 0 = no such point) are of: `rows` rows, each with
    `context` positions before it. Raises TraceError naming the packet when a mark is missing, is out of order, or is
    nobody's."""
    lists = [[decode(r) for r in packets] for packets in record.lists]
    longest = max(map(len, lists))
    if marks.ndim != 3 or len(marks) != len(lists) or marks.shape[1] < longest or marks.shape[2] != len(POINTS):
        raise TraceError(f"marks of shape {marks.shape} are not of {len(lists)} workers with up to {longest} packets",
                         f"program T={record.rows}", "trace the program that you look at")  # fmt: skip
    first = int(marks[marks > 0].min()) if (marks > 0).any() else 0
    family = families((p for packets in lists for p in packets), nodes)
    workers = []
    for w, packets in enumerate(lists):
        if (marks[w, len(packets) :] > 0).any():
            raise TraceError(f"worker {w} has marks behind its {len(packets)} packets", f"program T={record.rows}",
                             "trace the program that you look at")  # fmt: skip
        found = []
        for i, p in enumerate(packets):
            alone = replace(record, lists=[record.lists[w][i : i + 1]])
            size = weight_bytes(alone) + _part_bytes(p, rows, context)
            points = (int(m) - first if m else None for m in marks[w, i])
            found.append(_checked(Traced(p, nodes[p.node], family[p.seq], size, *points)))
        workers.append(list(_attention_ends(found)))
    end = max(p.end for worker in workers for p in worker)
    return Step(rows, nodes, workers, end - _period(workers, end), end)


def _period(workers: list[list[Traced]], otherwise: int) -> int:
    """From a worker's first start to its last done, mean over the workers that have both."""
    took = []
    for packets in workers:
        starts = [p.start for p in packets if p.start is not None]
        if starts and (done := [p.done for p in packets if p.done is not None]):
            took.append(max(done) - min(starts))
    return round(fmean(took)) if took else otherwise


def _checked(p: Traced) -> Traced:
    """The packet if its marks can be right. Attention is the consumers' work: the epilogue walks past such a packet
    long before, and its mark is not one of the packet's."""
    where, attention = f"worker {p.packet.worker}", p.packet.opcode == Opcode.STREAM_ATTENTION
    others = [m for m in p.marks[:3] if m is not None]
    if attention and others and p.published is not None and p.published < max(others):
        p = replace(p, published=None)
    if p.published is None and not (attention and others):
        raise TraceError(f"{p.name} has no mark at {POINTS[3]}", where, "trace a step that runs every packet")
    known = [(name, m) for name, m in zip(POINTS, p.marks, strict=True) if m is not None]
    for (a, before), (b, after) in pairwise(known):
        if after < before:
            raise TraceError(f"{p.name} is {b} {before - after} ns before {a}", where, "the marks are damaged")
    return p


def _attention_ends(packets: list[Traced]) -> Iterator[Traced]:
    """A worker's packets; an attention is published where the consumers' next packet starts."""
    for i, p in enumerate(packets):
        after = next((q.start for q in packets[i + 1 :] if q.start is not None), None)
        open_ended = p.packet.opcode == Opcode.STREAM_ATTENTION and p.published is None
        yield replace(p, published=after) if open_ended and after is not None and after >= p.end else p


def _part_bytes(p: Packet, rows: int, context: int) -> int:
    """Bytes of keys and values that an attention packet reads: its part of what `kv_bytes` counts for the row."""
    d = p.dims
    if p.opcode != Opcode.STREAM_ATTENTION or d["row"] >= rows:
        return 0
    positions = min(context, d["window"]) if d["window"] else context
    pages = max(-(-positions // (KV_BLOCK * d["splits"])), SPLIT_PAGES)
    mine = min(max(positions - d["split"] * pages * KV_BLOCK, 0), pages * KV_BLOCK)
    return 2 * 2 * d["head_dim"] * mine


def families(packets: Iterable[Packet], nodes: Sequence[str]) -> dict[int, str]:
    """Operator family by seq: of a projection by what it does (qkv writes rows, gate_up is gated) and by what makes its
    input (o reads attention, down reads gate_up); any other has its node's name."""
    found: dict[int, str] = {}
    made: dict[int, str] = {}  # by address of y
    for p in sorted(packets, key=lambda p: p.seq):
        family = FAMILIES.get(p.opcode, "")
        if p.opcode == Opcode.STREAM_LINEAR:
            family = READERS.get(made.get(p.operands["x"], ""), "")
            if Flag.F32_ROWS in p.flags:
                family = "qkv"
            elif p.epilogue != Epilogue.STORE:
                family = "gate_up"
        found[p.seq] = family or nodes[p.node].rsplit(".")[-1]
        if "y" in p.operands:
            made[p.operands["y"]] = found[p.seq]
    return found

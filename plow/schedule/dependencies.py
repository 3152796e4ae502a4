"""Dependencies: which packets a packet must follow, and how each order is realised.

An order u before v is realised, in this sequence of preference, by
  program order   same worker, u earlier in its list: nothing to do;
  implied order   what v's worker has already waited for covers u (vector clocks): nothing to do;
  counter         v waits until all packets of u's node have signalled the node's counter.
"""

from __future__ import annotations

from dataclasses import dataclass

from plow.packet.abi import NUM_WAITS, STEP_COUNTER, Opcode
from plow.packet.codec import Packet
from plow.packet.effects import Effect, effects, overlaps


@dataclass
class Group:
    """The packets of one node. follows: earlier groups that share memory with it (their index)."""

    packets: list[Packet]
    follows: list[int]


@dataclass
class Scheduled:
    """packets in topological order; counter_totals: signals a step, counter 0 is the step counter."""

    packets: list[Packet]
    counter_totals: list[int]


def schedule(groups: list[Group], workers: int, num_kv_blocks: int) -> Scheduled:
    """Assign waits and signals. Groups come in topological order; every worker gets at least one packet, its first
    waits for the previous step and its last one signals this step.

    When a packet needs more than NUM_WAITS counters, a NOP in front of it on the same worker carries the others.
    """
    clocks = [[0] * workers for _ in range(workers)]
    lengths = [0] * workers
    index: dict[int, int] = {}
    after: dict[int, list[int]] = {}
    counters: dict[int, int] = {}
    out: list[Packet] = []
    seen: dict[int, list[Effect]] = {}

    def emit(p: Packet) -> None:
        p.seq = len(out)
        out.append(p)
        index[id(p)] = lengths[p.worker]
        lengths[p.worker] += 1
        clocks[p.worker][p.worker] = lengths[p.worker]
        after[id(p)] = list(clocks[p.worker])

    for g in groups:
        for p in g.packets:
            seen[id(p)] = effects(p, num_kv_blocks)
            needed = _needed(p, g, groups, seen, index, clocks[p.worker], after, counters)
            step = [(STEP_COUNTER, workers)] if lengths[p.worker] == 0 else []
            waits = step + [(counters[i], len(groups[i].packets)) for i in needed]
            for first in range(0, max(1, len(waits)), NUM_WAITS):
                last = first + NUM_WAITS >= len(waits)
                carrier = p if last else Packet(Opcode.NOP, worker=p.worker, node=p.node)
                carrier.waits = waits[first : first + NUM_WAITS]
                emit(carrier)
    for worker in [w for w in range(workers) if lengths[w] == 0]:
        emit(Packet(Opcode.NOP, worker=worker, waits=[(STEP_COUNTER, workers)]))
    _signal(groups, counters, out)
    totals = [0] * (len(counters) + 1)
    for p in out:
        for c in p.signals:
            totals[c] += 1
    return Scheduled(out, totals)


def _needed(
    p: Packet,
    g: Group,
    groups: list[Group],
    seen: dict[int, list[Effect]],
    index: dict[int, int],
    clock: list[int],
    after: dict[int, list[int]],
    counters: dict[int, int],
) -> list[int]:
    """Groups that p has to wait for; latest first, so that earlier ones are often implied."""
    waits: list[int] = []
    for i in sorted(set(g.follows), reverse=True):
        if all(index[id(q)] < clock[q.worker] for q in groups[i].packets):
            continue
        before = [q for q in groups[i].packets if _conflict(seen[id(q)], seen[id(p)])]
        if all(index[id(q)] < clock[q.worker] for q in before):
            continue
        counters.setdefault(i, len(counters) + 1)
        waits.append(i)
        for q in groups[i].packets:
            clock[:] = [max(a, b) for a, b in zip(clock, after[id(q)], strict=True)]
    return waits


def _conflict(earlier: list[Effect], later: list[Effect]) -> bool:
    """Read after write, write after read or write after write on shared bytes."""
    return any("w" in (a.mode, b.mode) and overlaps(a.region, b.region) for a in earlier for b in later)


def _signal(groups: list[Group], counters: dict[int, int], out: list[Packet]) -> None:
    """Every packet of a group that is waited for signals its counter; every worker's last packet signals the step."""
    for i, counter in counters.items():
        for p in groups[i].packets:
            p.signals.append(counter)
    for p in {p.worker: p for p in out}.values():
        p.signals.append(STEP_COUNTER)

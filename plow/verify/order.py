"""Which orders the synchronisation of a program enforces, and a chain of packets that shows it.

Vector clocks over the decoded waits and signals: clock[v][w] is the last packet of worker w that has certainly
finished when v starts. Only waits for *all* signals of a counter count, as in `Enforced` of the Lean model.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from plow.packet.abi import STEP_COUNTER


@dataclass
class Sync:
    """What a packet waits for and signals; index = seq."""

    worker: int
    waits: list[tuple[int, int]]
    signals: list[int]


class Order:
    """The enforced order of one program. packets: in the order of seq; totals: signals a step of each counter."""

    def __init__(self, packets: list[Sync], totals: list[int]) -> None:
        self.packets = packets
        self.producers: dict[int, list[int]] = {}
        for i, p in enumerate(packets):
            for c in p.signals:
                self.producers.setdefault(c, []).append(i)
        width = max((p.worker for p in packets), default=0) + 1
        self.clock = np.full((len(packets), width), -1, np.int64)
        self.through = np.full((len(packets), width), -1, np.int64)
        """through[v][w]: the packet directly before v (in its list, or a producer) that knows clock[v][w]."""
        self.full = [[c for c, t in p.waits if self._is_full(i, c, t, totals)] for i, p in enumerate(packets)]
        """full[v]: counters all signals of which v waits for."""
        self._counter_clock: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        last: dict[int, int] = {}
        for v, p in enumerate(packets):
            if p.worker in last:
                self._learn(v, *self._after(last[p.worker]))
            for c in self.full[v]:
                self._learn(v, *self._after_counter(c))
            last[p.worker] = v

    def _is_full(self, v: int, counter: int, threshold: int, totals: list[int]) -> bool:
        producers = self.producers.get(counter, [])
        return counter != STEP_COUNTER and threshold >= totals[counter] and bool(producers) and producers[-1] < v

    def _after(self, a: int) -> tuple[np.ndarray, np.ndarray]:
        """What is known once packet a has finished, and through whom."""
        clock = self.clock[a].copy()
        clock[self.packets[a].worker] = a
        return clock, np.full(len(clock), a)

    def _after_counter(self, c: int) -> tuple[np.ndarray, np.ndarray]:
        if c not in self._counter_clock:
            clock, through = self._after(self.producers[c][0])
            for a in self.producers[c][1:]:
                other, _ = self._after(a)
                through = np.where(other > clock, a, through)
                clock = np.maximum(clock, other)
            self._counter_clock[c] = clock, through
        return self._counter_clock[c]

    def _learn(self, v: int, clock: np.ndarray, through: np.ndarray) -> None:
        newer = clock > self.clock[v]
        self.clock[v] = np.where(newer, clock, self.clock[v])
        self.through[v] = np.where(newer, through, self.through[v])

    def direct(self, u: int, v: int) -> int | None:
        """A counter that u signals and all signals of which v waits for."""
        return next((c for c in self.packets[u].signals if c in self.full[v]), None)

    def chain(self, u: int, v: int) -> list[int] | None:
        """Packets between u and v such that each is enforced before the next; None if u may still run when v starts."""
        w = self.packets[u].worker
        if (w == self.packets[v].worker and u < v) or self.direct(u, v) is not None:
            return []
        if self.clock[v, w] < u:
            return None
        path = [v]
        while self.packets[path[-1]].worker != w:
            path.append(int(self.through[path[-1], w]))
        if path[-1] != u:
            path.append(u)
        return self._shortened(path[::-1])[1:-1]

    def _shortened(self, path: list[int]) -> list[int]:
        """Without the packets in the middle of a run on one worker: its list orders the ends of the run."""
        worker = [self.packets[i].worker for i in path]
        ends = (0, len(path) - 1)
        return [i for k, i in enumerate(path) if k in ends or not worker[k - 1] == worker[k] == worker[k + 1]]

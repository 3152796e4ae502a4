"""Small random programs, and an exhaustive search over their interleavings (two steps): the independent judge of the
payload builder. It knows counters, lists and thresholds from the packet ABI, and nothing of clocks or histograms."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass

from plow.errors import VerifyError
from plow.packet.abi import STEP_COUNTER
from plow.packet.effects import Effect, Region, overlaps
from plow.verify.diagnose_d import diagnose
from plow.verify.format_d import PayloadD
from plow.verify.hazards import required
from plow.verify.order import Order, Sync
from plow.verify.payload_d import justify
from plow.verify.selftest import record_of

STEPS = 2


@dataclass
class Tiny:
    """packets in the order of seq; effects of each; totals as the packet file would state them."""

    packets: list[Sync]
    effects: list[list[Effect]]
    totals: list[int]

    def conflicts(self) -> list[tuple[int, int]]:
        pairs = itertools.combinations(range(len(self.packets)), 2)
        return [(u, v) for u, v in pairs if any(
            "w" in a.mode + b.mode and overlaps(a.region, b.region) for a in self.effects[u] for b in self.effects[v])]


def random_program(rng: random.Random) -> Tiny:
    """Safe synchronisation for random effects, then (mostly) one random corruption."""
    n, workers = rng.randint(2, 6), rng.randint(1, 3)
    effects = [[Effect(rng.choice("rw"), "x", Region(0, 16, a, a + rng.randint(1, 2), 1, 0, 16))
                for a in rng.sample(range(4), rng.randint(1, 2))] for _ in range(n)]
    packets = [Sync(rng.randrange(workers), [], []) for _ in range(n)]
    tiny = Tiny(packets, effects, [])
    counter = 0
    for u, v in tiny.conflicts():
        if packets[u].worker != packets[v].worker and rng.random() < 0.9 and len(packets[u].signals) < 2:
            counter += 1
            packets[u].signals.append(counter)
            also = [p for p in packets[:v] if len(p.signals) < 1 and rng.random() < 0.3]
            for p in also:
                p.signals.append(counter)
            packets[v].waits.append((counter, 1 + len(also)))
    used = sorted({p.worker for p in packets})
    for w in used:
        mine = [p for p in packets if p.worker == w]
        mine[0].waits.insert(0, (STEP_COUNTER, len(used)))
        mine[-1].signals.append(STEP_COUNTER)
    if rng.random() < 0.6:
        _corrupt(rng, packets)
    tiny.totals = [sum(p.signals.count(c) for p in packets) for c in range(counter + 1)]
    return tiny


def _corrupt(rng: random.Random, packets: list[Sync]) -> None:
    p = rng.choice(packets)
    match rng.randrange(5):
        case 0 if p.waits:
            p.waits.pop(rng.randrange(len(p.waits)))
        case 1 if p.waits:
            i = rng.randrange(len(p.waits))
            c, t = p.waits[i]
            p.waits[i] = (c, max(0, t + rng.choice([-1, 1])))
        case 2 if p.signals:
            p.signals.pop(rng.randrange(len(p.signals)))
        case 3:
            other = rng.choice(packets)
            p.signals, other.signals = other.signals, p.signals
        case _:
            p.waits, p.signals = [], list(p.signals)


def payload_of(tiny: Tiny) -> PayloadD | None:
    """The builder's payload; None when it refuses the program."""
    order = Order(tiny.packets, tiny.totals)
    hazards = required(tiny.effects, [p.worker for p in tiny.packets])
    names = [f"packet {i}" for i in range(len(tiny.packets))]
    try:
        witnesses, fans = justify(hazards, order, names, "tiny")
    except VerifyError:
        return None
    blank = [bytes(4) + i.to_bytes(4, "little") + bytes(24) for i in range(len(tiny.packets))]
    records = [record_of(s, b) for s, b in zip(tiny.packets, blank, strict=True)]
    workers = max(p.worker for p in tiny.packets) + 1
    lengths = [sum(p.worker == w for p in tiny.packets) for w in range(workers)]
    return PayloadD("tiny", records, tiny.totals, lengths, witnesses, fans, names)


def accepted(payload: PayloadD | None) -> bool:
    """What Lean would say, by the diagnosis (tests compare it with Lean on a sample)."""
    return payload is not None and not diagnose(payload)


def misbehaves(tiny: Tiny) -> str:
    """The first fault that some interleaving of two steps shows: deadlock, order, overlap of steps; "" if none."""
    lists = [[i for i, p in enumerate(tiny.packets) if p.worker == w] for w in sorted({p.worker for p in tiny.packets})]
    runs = [[(e, i) for e in range(STEPS) for i in mine] for mine in lists]
    conflicts = set(tiny.conflicts())
    start = tuple((0, False) for _ in runs)  # per worker: events finished, one running
    seen, todo = {start}, [start]
    while todo:
        state = todo.pop()
        done = {runs[w][k] for w, (n, _) in enumerate(state) for k in range(n)}
        moves = 0
        for w, (n, running) in enumerate(state):
            if n == len(runs[w]):
                continue
            e, i = runs[w][n]
            if not running:
                if not all(_met(tiny, done, e, c, t) for c, t in tiny.packets[i].waits):
                    continue
                if any((e, u) not in done for u, v in conflicts if v == i):
                    return "order"
                if e and any((e - 1, u) not in done for u in range(len(tiny.packets))):
                    return "steps overlap"
            moves += 1
            after = tuple((n + running, not running) if k == w else s for k, s in enumerate(state))
            if after not in seen:
                seen.add(after)
                todo.append(after)
        if not moves and any(n < len(runs[w]) for w, (n, _) in enumerate(state)):
            return "deadlock"
    return ""


def _met(tiny: Tiny, done: set[tuple[int, int]], e: int, counter: int, threshold: int) -> bool:
    """The wait rule of the packet ABI, with steps counted from 0."""
    value = sum(tiny.packets[i].signals.count(counter) for _, i in done)
    base = (e - 1 if counter == STEP_COUNTER else e) * tiny.totals[counter]
    return value >= base + threshold

"""Why Lean rejects a payload of checkpoint D, for people: the packet, the counter and the numbers.

The checks of lean/CounterProtocol/Payload.lean, repeated in Python to find *where* they fail. This decides nothing:
a payload is certified by Lean alone, and Lean is asked to confirm the first fault before it is reported.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from plow.packet.abi import STEP_COUNTER
from plow.verify.checkpoint import Fault

if TYPE_CHECKING:
    from plow.verify.order import Sync
    from plow.verify.payload_d import PayloadD


def diagnose(p: PayloadD, syncs: list[Sync], seqs: list[int]) -> list[Fault]:
    """Faults in the order in which a reader should mend them: packets, then totals, then orders."""
    return [*_packets(p, syncs, seqs), *_totals(p, syncs), *_fans(p, syncs), *_chains(p, syncs)]


def _name(p: PayloadD, i: int) -> str:
    return p.names[i] if i < len(p.names) else f"packet {i}"


def _total(p: PayloadD, counter: int) -> int:
    return p.totals[counter] if counter < len(p.totals) else 0


def _packets(p: PayloadD, syncs: list[Sync], seqs: list[int]) -> list[Fault]:
    found: list[Fault] = []
    signals: Counter[int] = Counter()
    listed: Counter[int] = Counter()
    for i, s in enumerate(syncs):
        name, false = _name(p, i), f"checkPacket payload {i} = false"
        if seqs[i] != i:
            found.append(Fault(f"{name} stands at place {i} but carries seq {seqs[i]}", false))
        for c, t in s.waits:
            if c == STEP_COUNTER and t > _total(p, c):
                found.append(Fault(f"{name} waits for {t} signals of the step counter; a step gives {_total(p, c)}", false))
            elif c != STEP_COUNTER and t > signals[c]:
                found.append(Fault(f"{name} waits for {t} signals of counter {c}; packets before it give {signals[c]}", false))
        step_waits = [t for c, t in s.waits if c == STEP_COUNTER and t >= _total(p, c)]
        if not listed[s.worker] and not step_waits:
            found.append(Fault(f"{name} is first of worker {s.worker} and does not wait for the previous step", false))
        listed[s.worker] += 1
        stated = p.lengths[s.worker] if s.worker < len(p.lengths) else 0
        if listed[s.worker] == stated and STEP_COUNTER not in s.signals:
            found.append(Fault(f"{name} is last of worker {s.worker} and does not signal the step counter", false))
        signals.update(s.signals)
    return found


def _totals(p: PayloadD, syncs: list[Sync]) -> list[Fault]:
    found: list[Fault] = []
    for what, stated, real, who, false in (
            ("signals of counter", p.totals, [c for s in syncs for c in s.signals], _signallers, "checkTotals payload = false"),
            ("packets of worker", p.lengths, [s.worker for s in syncs], _members, "checkLengths payload = false")):
        counted = Counter(real)
        for k in sorted(set(counted) | set(range(len(stated)))):
            claim = stated[k] if k < len(stated) else 0
            if claim != counted[k]:
                names = ", ".join(_name(p, i) for i in who(syncs, k)[:4]) or "no packet"
                found.append(Fault(f"{claim} {what} {k} are stated, {counted[k]} are there: {names}", false))
    return found


def _signallers(syncs: list[Sync], counter: int) -> list[int]:
    return [i for i, s in enumerate(syncs) if counter in s.signals]


def _members(syncs: list[Sync], worker: int) -> list[int]:
    return [i for i, s in enumerate(syncs) if s.worker == worker]


def _waits_for_all(p: PayloadD, s: Sync, counter: int) -> bool:
    return counter != STEP_COUNTER and any(c == counter and t >= _total(p, c) for c, t in s.waits)


def _fans(p: PayloadD, syncs: list[Sync]) -> list[Fault]:
    return [Fault(message, f"checkFan payload.program (fanOf ({fan_literal(f)})) = false")
            for f in p.fans if (message := _fan(p, syncs, f))]


def _fan(p: PayloadD, syncs: list[Sync], f: Fan) -> str:
    before = range(f.first, f.first + f.length)
    for v in f.afters:
        if not _waits_for_all(p, syncs[v], f.counter):
            makers = ", ".join(_name(p, i) for i in before[:4])
            return (f"{_name(p, v)} does not wait for all {_total(p, f.counter)} signals of counter {f.counter}, so it "
                    f"may start before {makers}")
    for u in before:
        if f.counter not in syncs[u].signals:
            return (f"{_name(p, u)} does not signal counter {f.counter}, so {_name(p, f.afters[0])}, which must follow "
                    "it, may start first")
    return ""


def _chains(p: PayloadD, syncs: list[Sync]) -> list[Fault]:
    found = []
    for w in p.witnesses:
        path = [w.before, *w.via, w.after]
        for a, b in itertools.pairwise(path):
            in_list = a < b and syncs[a].worker == syncs[b].worker
            if not in_list and not any(_waits_for_all(p, syncs[b], c) for c in syncs[a].signals):
                message = (f"{_name(p, w.after)} must follow {_name(p, w.before)}, but nothing makes {_name(p, b)} start "
                           f"after {_name(p, a)}")
                found.append(Fault(message, f"checkWitness payload (witnessOf ({witness_literal(w)})) = false"))
                break
    return found

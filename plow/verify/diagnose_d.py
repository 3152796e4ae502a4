"""Why Lean rejects a payload of checkpoint D, for people: the packet, the counter and the numbers.

The checks of lean/CounterProtocol/Payload.lean, repeated in Python to find *where* they fail. This decides nothing:
a payload is certified by Lean alone, and Lean is asked to confirm the first fault before it is reported.
"""

from __future__ import annotations

import itertools
from collections import Counter

from plow.packet.abi import STEP_COUNTER
from plow.verify.checkpoint import Fault
from plow.verify.format_d import Fan, PayloadD, fan_literal, has_gap, slots_of, sync_of, witness_literal
from plow.verify.order import Sync


def diagnose(p: PayloadD) -> list[Fault]:
    """Faults in the order in which a reader should mend them: packets, then totals, then orders."""
    syncs = [sync_of(r) for r in p.records]
    seqs = [int.from_bytes(r[4:8], "little") for r in p.records]
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
        texts = [f"stands at place {i} but carries seq {seqs[i]}"] if seqs[i] != i else []
        waits, raw_signals = slots_of(p.records[i])
        if has_gap([c for c, _ in waits]) or has_gap(raw_signals):
            texts.append("uses a wait or signal slot after an unused one")
        texts += [text for c, t in s.waits if (text := _wait(p, c, t, signals[c]))]
        if not listed[s.worker] and not any(c == STEP_COUNTER and t >= _total(p, c) for c, t in s.waits):
            texts.append(f"is first of worker {s.worker} and does not wait for the previous step")
        listed[s.worker] += 1
        stated = p.lengths[s.worker] if s.worker < len(p.lengths) else 0
        if listed[s.worker] == stated and STEP_COUNTER not in s.signals:
            texts.append(f"is last of worker {s.worker} and does not signal the step counter")
        signals.update(s.signals)
        found += [Fault(f"{_name(p, i)} {text}", f"checkPacket payload {i} = false") for text in texts]
    return found


def _wait(p: PayloadD, counter: int, threshold: int, before: int) -> str:
    """What is wrong with a wait, when `before` signals come from earlier packets."""
    if counter == STEP_COUNTER:
        total = _total(p, counter)
        return f"waits for {threshold} signals of the step counter; a step gives {total}" if threshold > total else ""
    if threshold > before:
        return f"waits for {threshold} signals of counter {counter}; packets before it give {before}"
    return ""


def _totals(p: PayloadD, syncs: list[Sync]) -> list[Fault]:
    signals = [(c, i) for i, s in enumerate(syncs) for c in s.signals]
    members = [(s.worker, i) for i, s in enumerate(syncs)]
    return [*_counts(p, "signals of counter", p.totals, signals, "checkTotals payload = false"),
            *_counts(p, "packets of worker", p.lengths, members, "checkLengths payload = false")]


def _counts(p: PayloadD, what: str, stated: list[int], real: list[tuple[int, int]], proposition: str) -> list[Fault]:
    """real: (key, packet) of everything that is counted."""
    counted = Counter(k for k, _ in real)
    found = []
    for k in sorted(set(counted) | set(range(len(stated)))):
        claim = stated[k] if k < len(stated) else 0
        if claim != counted[k]:
            names = ", ".join([_name(p, i) for key, i in real if key == k][:4]) or "no packet"
            found.append(Fault(f"{claim} {what} {k} are stated, {counted[k]} are there: {names}", proposition))
    return found


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
                message = (f"{_name(p, w.after)} must follow {_name(p, w.before)}, but nothing makes {_name(p, b)} "
                           f"start after {_name(p, a)}")
                found.append(Fault(message, f"checkWitness payload (witnessOf ({witness_literal(w)})) = false"))
                break
    return found

"""Planted faults: corrupted payloads of checkpoint D that Lean must reject, and untouched ones it must certify.

    for case in planted(): outcome = case.run()      outcome.ok: rejected and explained (control: certified)
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from plow.errors import VerifyError
from plow.packet.abi import NO_COUNTER, NUM_SIGNALS, NUM_WAITS, STEP_COUNTER
from plow.packet.container import PacketFile
from plow.verify import payload_d
from plow.verify.certificate import judge
from plow.verify.format_d import PayloadD, Witness, sync_of
from plow.verify.library import compile_library
from plow.verify.order import Order, Sync
from plow.verify.sample import sample_program

SCHEMA = "plow.self-test/1"
Mutation = Callable[[list[Sync], PayloadD], None]


class Outcome(NamedTuple):
    """ok: the verdict is the expected one and, for a planted fault, the reason names a packet."""

    ok: bool
    verdict: str
    reason: str


@dataclass(frozen=True)
class Case:
    name: str
    run: Callable[[], Outcome]
    control: bool = False


def planted(file: PacketFile | None = None) -> list[Case]:
    """The cases. file: whose first program is corrupted; without one, a small program of the real scheduler."""
    file = file or sample_program()
    payloads = payload_d.build(file)
    cases = [Case(doc, _runner(mutated(payloads[0], mutate), False)) for doc, mutate in MUTATIONS.items()]
    distinct = {p.lean(): p for p in payloads}.values()
    return cases + [Case(f"control {p.title} is certified", _runner(p, True), True) for p in distinct]


def run_all(file: PacketFile | None = None, progress: Callable[[str], None] = lambda line: None) -> dict[str, Any]:
    """Run every case: {"planted": n, "caught": n, "controls": n, "controls_green": n, "cases": [...]}."""
    cases = planted(file)
    outcomes = []
    for c in cases:
        o = c.run()
        outcomes.append({"name": c.name, "control": c.control, **o._asdict()})
        progress(f"{'ok ' if o.ok else 'BAD'} {c.name}: {o.verdict} {o.reason}".rstrip())
    faults = [o["ok"] for o in outcomes if not o["control"]]
    controls = [o["ok"] for o in outcomes if o["control"]]
    return {"schema": SCHEMA, "planted": len(faults), "caught": sum(faults), "controls": len(controls),
            "controls_green": sum(controls), "cases": outcomes}


def _runner(payload: PayloadD, control: bool) -> Callable[[], Outcome]:
    def run() -> Outcome:
        v = judge(compile_library(), payload_d.CHECKPOINT, payload)
        ok = v.verdict == "certified" if control else v.verdict == "rejected" and "packet " in v.reason
        return Outcome(ok, v.verdict, v.reason)

    return run


def mutated(payload: PayloadD, mutate: Mutation) -> PayloadD:
    """A corrupted copy. A mutation changes the decoded packets, or the payload itself. Raises VerifyError when the
    program has no place for the fault."""
    p = copy.deepcopy(payload)
    syncs = [sync_of(r) for r in p.records]
    mutate(syncs, p)
    return replace(p, records=[record_of(s, r) for s, r in zip(syncs, p.records, strict=True)])


def record_of(s: Sync, old: bytes) -> bytes:
    """The record with its worker, waits and signals replaced."""
    waits = [*s.waits, *[(NO_COUNTER, 0)] * NUM_WAITS][:NUM_WAITS]
    signals = [*s.signals, *[NO_COUNTER] * NUM_SIGNALS][:NUM_SIGNALS]
    words = [x for wait in waits for x in wait] + signals
    return s.worker.to_bytes(2, "little") + old[2:12] + b"".join(x.to_bytes(2, "little") for x in words)


def _gap(syncs: list[Sync], p: PayloadD) -> None:
    """The wait moves behind an unused slot, where an interpreter that stops there does not see it."""
    i, k = _waiter(syncs)
    syncs[i].waits.insert(k, (NO_COUNTER, 0))


def _waiter(syncs: list[Sync]) -> tuple[int, int]:
    """(packet, slot) of a wait inside the step, in the middle of the program."""
    found = [(i, k) for i, s in enumerate(syncs) for k, (c, _) in enumerate(s.waits) if c != STEP_COUNTER]
    if not found:
        raise VerifyError("the program has no wait inside a step", "self-test", "take a program with two workers")
    return found[len(found) // 2]


def _signaller(syncs: list[Sync]) -> int:
    """A packet that signals the counter of `_waiter`."""
    i, k = _waiter(syncs)
    return next(j for j, s in enumerate(syncs) if syncs[i].waits[k][0] in s.signals)


def _threshold(delta: int) -> Mutation:
    def mutate(syncs: list[Sync], p: PayloadD) -> None:
        i, k = _waiter(syncs)
        c, t = syncs[i].waits[k]
        syncs[i].waits[k] = (c, t + delta)

    return mutate


def _drop_wait(syncs: list[Sync], p: PayloadD) -> None:
    i, k = _waiter(syncs)
    del syncs[i].waits[k]


def _drop_signal(syncs: list[Sync], p: PayloadD) -> None:
    i, k = _waiter(syncs)
    syncs[_signaller(syncs)].signals.remove(syncs[i].waits[k][0])


def _uncounted_producer(syncs: list[Sync], p: PayloadD) -> None:
    """The signal, its share of the total and of the thresholds are gone: only the order is lost."""
    i, k = _waiter(syncs)
    counter = syncs[i].waits[k][0]
    syncs[_signaller(syncs)].signals.remove(counter)
    p.totals[counter] -= 1
    for s in syncs:
        s.waits[:] = [(c, t - 1 if c == counter else t) for c, t in s.waits]


def _cycle(syncs: list[Sync], p: PayloadD) -> None:
    """A packet waits for a counter that only packets after it signal."""
    i, _ = _waiter(syncs)
    j = _signaller(syncs)
    counter = len(p.totals)
    p.totals.append(1)
    syncs[i].signals.append(counter)
    syncs[j].waits.append((counter, 1))


def _swap_order(syncs: list[Sync], p: PayloadD) -> None:
    """Producer and consumer change places in the order of seq."""
    i, _ = _waiter(syncs)
    j = _signaller(syncs)
    syncs[i], syncs[j] = syncs[j], syncs[i]


def _uncovered(syncs: list[Sync], p: PayloadD) -> None:
    """An order between packets that may run at the same time, which the payload claims are ordered."""
    order = Order(syncs, p.totals)
    u, v = next((u, v) for v in range(len(syncs) // 2, len(syncs)) for u in range(v) if order.chain(u, v) is None)
    p.witnesses.append(Witness(u, v, []))


def _move_producer(syncs: list[Sync], p: PayloadD) -> None:
    """The signal is given by a packet after the one that waits."""
    i, k = _waiter(syncs)
    counter = syncs[i].waits[k][0]
    syncs[_signaller(syncs)].signals.remove(counter)
    next(s for s in syncs[i + 1:] if len(s.signals) < NUM_SIGNALS).signals.append(counter)


def _drop_step_wait(syncs: list[Sync], p: PayloadD) -> None:
    first = next(s for s in syncs if any(c == STEP_COUNTER for c, _ in s.waits))
    first.waits[:] = [(c, t) for c, t in first.waits if c != STEP_COUNTER]


def _short_step_wait(syncs: list[Sync], p: PayloadD) -> None:
    first = next(s for s in syncs if any(c == STEP_COUNTER for c, _ in s.waits))
    first.waits[:] = [(c, t - 1 if c == STEP_COUNTER else t) for c, t in first.waits]


def _early_step_signal(syncs: list[Sync], p: PayloadD) -> None:
    """The step counter is signalled by a packet before the last one of its worker."""
    last = max(i for i, s in enumerate(syncs) if STEP_COUNTER in s.signals)
    earlier = next(i for i, s in enumerate(syncs) if s.worker == syncs[last].worker and len(s.signals) < NUM_SIGNALS)
    syncs[last].signals.remove(STEP_COUNTER)
    syncs[earlier].signals.append(STEP_COUNTER)


def _false_total(syncs: list[Sync], p: PayloadD) -> None:
    i, k = _waiter(syncs)
    p.totals[syncs[i].waits[k][0]] += 1


def _other_worker(syncs: list[Sync], p: PayloadD) -> None:
    """A packet names another worker than the one whose list holds it."""
    i, _ = _waiter(syncs)
    others = [w for w in range(len(p.lengths)) if w != syncs[i].worker]
    syncs[i].worker = others[0]


MUTATIONS: dict[str, Mutation] = {
    "threshold one too high": _threshold(+1),
    "threshold one too low": _threshold(-1),
    "wait dropped": _drop_wait,
    "signal dropped": _drop_signal,
    "producer no longer counted": _uncounted_producer,
    "wait behind an unused slot": _gap,
    "cycle of waits": _cycle,
    "producer and consumer swapped": _swap_order,
    "order that nothing enforces": _uncovered,
    "producer moved behind its consumer": _move_producer,
    "step-counter wait dropped": _drop_step_wait,
    "step-counter threshold one too low": _short_step_wait,
    "step counter signalled too early": _early_step_signal,
    "stated total is false": _false_total,
    "packet in another worker's list": _other_worker,
}

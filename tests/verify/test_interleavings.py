"""No false accept: what the payload builder and Lean accept survives an exhaustive search over interleavings."""

from __future__ import annotations

import random
from collections import Counter

from interleavings import accepted, misbehaves, payload_of, random_program

from plow.verify.format_d import PayloadD
from plow.verify.library import Library
from plow.verify.payload_d import CHECKPOINT

PROGRAMS = 1000


def test_no_accepted_program_misbehaves_in_any_interleaving() -> None:
    rng = random.Random(11)
    verdicts: Counter[tuple[bool, str]] = Counter()
    for _ in range(PROGRAMS):
        tiny = random_program(rng)
        verdicts[accepted(payload_of(tiny)), misbehaves(tiny)] += 1
    false_accepts = {fault: n for (ok, fault), n in verdicts.items() if ok and fault}
    assert not false_accepts
    assert verdicts[True, ""] > PROGRAMS / 5, "the programs must not all be refused"
    for fault in ("order", "deadlock", "steps overlap"):
        assert verdicts[False, fault] > PROGRAMS / 100, f"too few programs that show: {fault}"


def test_lean_agrees_with_the_diagnosis_on_random_payloads(library: Library) -> None:
    rng = random.Random(12)
    payloads: list[PayloadD] = []
    while len(payloads) < 60:
        payload = payload_of(random_program(rng))
        if payload is not None:
            payloads.append(payload)
    expected = [accepted(p) for p in payloads]
    assert 10 < sum(expected) < 50
    source = CHECKPOINT.header()
    for i, (payload, ok) in enumerate(zip(payloads, expected, strict=True)):
        source += f"namespace Case{i}\n{payload.lean()}"
        source += f"theorem verdict : check payload = {str(ok).lower()} := by decide +kernel\nend Case{i}\n"
    run = library.run(source, timeout=60)
    assert run.clean, run.summary()

"""Lean rejects every planted fault with a reason that names a packet, and certifies the untouched payloads."""

from __future__ import annotations

import pytest

from plow.errors import VerifyError
from plow.packet.container import PacketFile
from plow.verify import payload_d, selftest
from plow.verify.certificate import judge
from plow.verify.library import Library


@pytest.mark.parametrize("case", selftest.planted(), ids=lambda c: c.name)
def test_planted_fault_is_caught_and_control_is_green(case: selftest.Case, library: Library) -> None:
    outcome = case.run()
    assert outcome.ok, outcome


def test_there_are_enough_faults_and_controls() -> None:
    cases = selftest.planted()
    assert sum(not c.control for c in cases) >= 12
    assert any(c.control for c in cases)


def test_every_fault_changes_the_payload(sample: PacketFile) -> None:
    payload = payload_d.build(sample)[0]
    for name, mutate in selftest.MUTATIONS.items():
        assert selftest.mutated(payload, mutate).lean() != payload.lean(), name


def test_a_fault_that_lean_accepts_is_reported_as_not_caught(sample: PacketFile, library: Library) -> None:
    payload = payload_d.build(sample)[0]
    harmless = selftest.mutated(payload, lambda syncs, p: None)
    assert judge(library, payload_d.CHECKPOINT, harmless).verdict == "certified"
    assert not selftest._runner(harmless, control=False)().ok


def test_a_program_without_waits_is_a_typed_error() -> None:
    with pytest.raises(VerifyError, match="no wait inside a step"):
        selftest._waiter([])

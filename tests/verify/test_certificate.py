"""Certificates are about these bytes, this library and all programs, or they are not green."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest

from plow.errors import VerifyError
from plow.packet import container
from plow.packet.container import PacketFile
from plow.verify import payload_d
from plow.verify.certificate import certify, check_bundle, judge
from plow.verify.library import Library
from plow.verify.payload_d import PayloadD


@pytest.fixture
def certified(bundle: Path, library: Library) -> Path:
    certify(bundle / "model.pkt", bundle / "certificates")
    return bundle


def edit(bundle: Path, **fields: object) -> None:
    path = bundle / "certificates" / "D.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def state(bundle: Path) -> tuple[str, str]:
    d = next(c for c in check_bundle(bundle) if c.checkpoint == "D")
    return d.verdict, d.reason


def test_a_program_of_the_scheduler_is_certified(certified: Path) -> None:
    saved = json.loads((certified / "certificates" / "D.json").read_text())
    assert saved["verdict"] == "certified"
    assert saved["packet_sha256"] == hashlib.sha256((certified / "model.pkt").read_bytes()).hexdigest()
    assert saved["axioms"] == ["propext"]
    assert saved["theorem"] == "CounterProtocol.sound"
    assert saved["programs"][0]["counts"]["packets"] == 18
    assert "version 4.35.0" in saved["lean"]


def test_the_other_checkpoints_are_visibly_not_run(certified: Path) -> None:
    assert [(c.checkpoint, c.verdict) for c in check_bundle(certified)] == [
        ("A", "not_run"), ("B", "not_run"), ("C", "not_run"), ("D", "certified"), ("E", "not_run"), ("F", "not_run"),
        ("G", "not_run")]


def test_a_bundle_without_certificate_is_missing_it(bundle: Path) -> None:
    assert state(bundle)[0] == "missing"


def test_other_packet_bytes_make_a_certificate_stale(certified: Path, sample: PacketFile) -> None:
    container.save(PacketFile({**sample.header, "note": 1}, sample.programs), certified / "model.pkt")
    assert state(certified) == ("stale", "it is about other packet bytes")


def test_another_library_makes_a_certificate_stale(certified: Path) -> None:
    edit(certified, library_sha256="0" * 64)
    assert state(certified)[0] == "stale"


def test_a_certificate_with_fewer_programs_is_rejected(certified: Path) -> None:
    edit(certified, programs=[])
    assert state(certified) == ("rejected", "it covers 0 payloads, the packet file has 1 (or others)")


def test_a_certificate_of_another_payload_or_more_axioms_is_rejected(certified: Path) -> None:
    saved = json.loads((certified / "certificates" / "D.json").read_text())
    edit(certified, programs=[{**saved["programs"][0], "axioms": ["propext", "sorryAx"]}])
    assert state(certified)[0] == "rejected"
    edit(certified, programs=[{**saved["programs"][0], "payload_sha256": "0" * 64}])
    assert state(certified)[0] == "rejected"


def test_an_unsafe_program_gets_no_certificate_and_loses_the_old_one(certified: Path, sample: PacketFile) -> None:
    packets = sample.programs[0].lists[1].copy()
    packets["waits"][1, 0] = (0xFFFF, 0)
    sample.programs[0].lists[1] = packets
    container.save(sample, certified / "model.pkt")
    with pytest.raises(VerifyError, match="may start before"):
        certify(certified / "model.pkt", certified / "certificates")
    assert state(certified)[0] == "missing"


def test_a_checkpoint_that_cannot_be_certified_is_a_typed_error(bundle: Path, library: Library) -> None:
    with pytest.raises(VerifyError, match="A cannot be certified yet"):
        certify(bundle / "model.pkt", bundle / "certificates", ["A"])


def test_a_proof_through_an_extra_axiom_is_rejected(sample: PacketFile, library: Library) -> None:
    class Cheat(PayloadD):
        def lean(self) -> str:
            return super().lean() + "axiom trust (h : check payload = true) : Safe payload.program\n"

    payload = payload_d.build(sample)[0]
    cheat = Cheat(**vars(payload))
    verdict = judge(library, replace(payload_d.CHECKPOINT, theorem="CounterProtocol.trust"), cheat)
    assert verdict.verdict == "rejected"
    assert "trust" in verdict.reason

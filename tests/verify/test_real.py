"""Every program of the real demo checkpoints is certified, within the time that a compile can afford."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from plow.checkpoint import Checkpoint
from plow.compile import Options, lower
from plow.models import build
from plow.packet import container
from plow.verify import certify, check_bundle, selftest
from plow.verify.library import Library

SECONDS = 30.0


def bundle_of(checkpoint: Path, folder: Path) -> container.PacketFile:
    graph = build(Checkpoint.open(checkpoint).config)
    packets = lower(graph, Options(workers=2), graph.meta["vocab_size"]).packets
    container.save(packets, folder / "model.pkt")
    return packets


@pytest.mark.real
@pytest.mark.parametrize("name", ["demo_smollm2", "demo_gemma3"])
def test_all_programs_of_a_real_checkpoint_are_certified(
        name: str, tmp_path: Path, request: pytest.FixtureRequest, library: Library) -> None:
    packets = bundle_of(request.getfixturevalue(name), tmp_path)
    start = time.perf_counter()
    certificates = certify(tmp_path / "model.pkt", tmp_path / "certificates")
    assert time.perf_counter() - start < SECONDS
    assert [len(c.programs) for c in certificates] == [len(packets.programs)] == [10]
    assert {c.checkpoint for c in check_bundle(tmp_path) if c.verdict == "certified"} == {"D"}


@pytest.mark.real
def test_corrupted_payloads_of_a_real_program_are_rejected(
        demo_smollm2: Path, tmp_path: Path, library: Library) -> None:
    result = selftest.run_all(bundle_of(demo_smollm2, tmp_path))
    assert result["planted"] == result["caught"] >= 12
    assert result["controls"] == result["controls_green"] >= 1

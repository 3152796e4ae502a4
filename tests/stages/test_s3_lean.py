"""Stage 3 sees programs, certificates and libraries that prove less than they seem to."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from stage_rig import caught, context, judged, verdict

from plow.verify.sample import sample_program
from stages.base import Planted
from stages.s3_lean import STAGE
from stages.s3_lean.gate import corruptions
from stages.s3_lean.planted import PLANTED, report, with_source
from stages.s3_lean.subject import Subject, compile_packets, fresh_cache

QUICK = [p for p in PLANTED if p.expect == "lean_findings"]
"""They end before Lean is started."""


@pytest.mark.parametrize("planted", QUICK, ids=lambda p: p.name)
def test_a_library_with_a_hole_is_red_before_it_certifies_anything(planted: Planted, tmp_path: Path) -> None:
    assert caught(STAGE, planted, tmp_path / "bad")
    names = [c.name for c in planted.make_bad(context(tmp_path / "again")).checks]
    assert names == ["lean_findings"]


@pytest.mark.slow
@pytest.mark.parametrize("planted", [p for p in PLANTED if p not in QUICK], ids=lambda p: p.name)
def test_a_planted_fault_is_red_and_named(planted: Planted, tmp_path: Path) -> None:
    assert caught(STAGE, planted, tmp_path / "bad")


@pytest.mark.slow
def test_a_right_program_is_green_and_the_other_checkpoints_are_listed(tmp_path: Path) -> None:
    found = judged(STAGE, report, tmp_path / "good")
    assert found.green, found.reasons
    assert [line.split()[1] for line in found.not_run] == ["A", "B", "C", "E", "F", "G"]


@pytest.mark.slow
def test_a_harmless_module_is_no_finding(tmp_path: Path) -> None:
    text = "prelude\nimport Base.Core\ntheorem fine : True := True.intro\n"
    found = verdict(STAGE, with_source(context(tmp_path), "Fine.lean", text))
    assert found.green, found.reasons


def test_fewer_corruptions_than_listed_are_red(tmp_path: Path) -> None:
    subject = Subject.of(context(tmp_path), sample_program())
    subject.self_test = lambda packets: {"planted": 14, "caught": 14, "controls": 1, "controls_green": 1, "cases": []}
    assert [c.name for c in corruptions(subject) if not c.ok] == ["corruptions_tried"]


def test_an_accepted_corruption_and_a_missing_control_are_red(tmp_path: Path) -> None:
    subject = Subject.of(context(tmp_path), sample_program())
    cases = [{"name": "wait dropped", "ok": False}]
    subject.self_test = lambda packets: {
        "planted": 15,
        "caught": 14,
        "controls": 0,
        "controls_green": 0,
        "cases": cases,
    }
    bad = {c.name: c for c in corruptions(subject) if not c.ok}
    assert set(bad) == {"corruptions_accepted", "controls_rejected"} and "wait" in bad["corruptions_accepted"].detail


def test_all_row_buckets_of_a_checkpoint_are_compiled(tiny_llama: Path, tmp_path: Path) -> None:
    packets = compile_packets(context(tmp_path, tiny_llama))
    assert [p.rows for p in packets.programs] == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]


def test_the_cache_of_the_gate_is_its_own_and_is_given_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "before")
    with fresh_cache(tmp_path):
        assert os.environ["XDG_CACHE_HOME"] == str(tmp_path)
    assert os.environ["XDG_CACHE_HOME"] == "before"
    monkeypatch.delenv("XDG_CACHE_HOME")
    with fresh_cache(tmp_path):
        pass
    assert "XDG_CACHE_HOME" not in os.environ


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.parametrize("demo", ["demo_smollm2", "demo_gemma3"])
def test_the_real_checkpoints_are_green(demo: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    found = verdict(STAGE, STAGE.gate(context(tmp_path, request.getfixturevalue(demo))))
    assert found.green, found.reasons

"""What must hold of a stage's definition, whatever it measures."""

from __future__ import annotations

import tomllib

import pytest
from stage_rig import ROOT, thresholds

from stages.base import Stage
from stages.s1_ir import STAGE as IR
from stages.s2_egglog import STAGE as EGGLOG
from stages.s3_lean import STAGE as LEAN
from stages.s5_block import STAGE as BLOCK

STAGES = pytest.mark.parametrize("stage", [IR, EGGLOG, LEAN, BLOCK], ids=lambda s: s.name)


@STAGES
def test_every_declared_check_has_a_threshold_and_every_threshold_a_check(stage: Stage) -> None:
    assert sorted(stage.checks) == sorted(thresholds(stage))
    assert len(set(stage.checks)) == len(stage.checks)


@STAGES
def test_every_threshold_says_why(stage: Stage) -> None:
    raw = tomllib.loads((ROOT / "stages" / stage.name / "thresholds.toml").read_text())
    assert not [name for name, entry in raw.items() if len(entry.get("why", "").split()) < 6]


@STAGES
def test_headline_is_made_of_declared_checks(stage: Stage) -> None:
    assert set(stage.headline) <= set(stage.checks)


@STAGES
def test_there_are_three_planted_faults_at_least_and_each_names_a_check(stage: Stage) -> None:
    assert len(stage.planted) >= 3
    assert len({p.name for p in stage.planted}) == len(stage.planted)
    assert all(p.expect in stage.checks for p in stage.planted)


@STAGES
def test_every_source_glob_matches_a_file(stage: Stage) -> None:
    folders = [g.split("*")[0] for g in stage.sources]
    assert not [f for f in folders if not (ROOT / f).exists()]

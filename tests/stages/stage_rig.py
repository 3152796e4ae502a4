"""Run a gate's planted subjects as the harness does: raw reports, judged by harness.verdict."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from harness.verdict import Verdict, decide
from plow.errors import PlowError
from stages.base import GateReport, Planted, Stage, StageContext, Thresholds

ROOT = Path(__file__).parents[2]


def context(workdir: Path, checkpoint: Path = Path("none"), **params: object) -> StageContext:
    workdir.mkdir(parents=True, exist_ok=True)
    return StageContext("tiny", "cpu", checkpoint, workdir, workdir / "bringup" / "evidence", ROOT, dict(params))


def thresholds(stage: Stage) -> Thresholds:
    return Thresholds.load(ROOT / "stages" / stage.name / "thresholds.toml", "cpu")


def verdict(stage: Stage, report: GateReport) -> Verdict:
    return decide(stage, thresholds(stage), [vars(c) for c in report.checks], report.not_run)


def caught(stage: Stage, planted: Planted, workdir: Path) -> str:
    """The reasons that name what was expected; "" when the fault got through."""
    try:
        found = verdict(stage, planted.make_bad(context(workdir)))
    except PlowError as e:
        return e.line() if planted.expect in e.line() else ""
    return "" if found.green else "\n".join(r for r in found.reasons if planted.expect in r)


def judged(stage: Stage, subject: Callable[[StageContext], GateReport], workdir: Path) -> Verdict:
    return verdict(stage, subject(context(workdir)))

"""Do the judges have power? Every planted fault must be caught, and every control must stay green."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from harness.child import run_judge
from harness.errors import BringUpError
from harness.prompts import thresholds_of
from harness.verdict import GREEN, NO_VERDICT, RED, decide
from stages.base import Stage, StageContext, Thresholds

GROUPS = ("gates", "guard", "lean", "rewrites")
HOOKS = {"lean": "plow.verify.selftest", "rewrites": "plow.rewrite.selftest"}
"""Modules of other rooms with `planted()`; harness.judge.run_hook says what it returns."""

HOOK_LIMIT_S = 600.0
Report = Callable[[str], None]


@dataclass
class Tally:
    """planted/caught: known-bad subjects and those that turned red. controls/controls_green: their good twins."""

    planted: int = 0
    caught: int = 0
    controls: int = 0
    controls_green: int = 0
    failures: list[str] = field(default_factory=list)

    def case(self, name: str, control: bool, ok: bool, detail: str = "") -> None:
        """One subject; ok: a planted one was caught, a control is green."""
        if control:
            self.controls, self.controls_green = self.controls + 1, self.controls_green + ok
        else:
            self.planted, self.caught = self.planted + 1, self.caught + ok
        if not ok:
            what = "its control is not green" if control else "not caught"
            self.failures.append(f"{name}: {what}{': ' + detail if detail else ''}")

    def pair(self, name: str, caught: bool, control: bool, detail: str = "") -> None:
        self.case(name, False, caught, detail)
        self.case(name, True, control, detail)

    def add(self, other: Tally) -> None:
        for key in ("planted", "caught", "controls", "controls_green"):
            setattr(self, key, getattr(self, key) + getattr(other, key))
        self.failures += other.failures

    @property
    def agrees(self) -> bool:
        return self.planted == self.caught and self.controls == self.controls_green and not self.failures

    def counts(self) -> dict[str, int]:
        return {k: getattr(self, k) for k in ("planted", "caught", "controls", "controls_green")}


def run(repo: Path, stages: Sequence[Stage], groups: Sequence[str], say: Report) -> dict[str, Any]:
    """The self-test as one JSON object. exit_code: 0 all agree, 1 not, 2 nothing was planted (no power)."""
    wanted = list(groups) or list(GROUPS)
    total, parts, not_run = Tally(), {}, []
    for group in wanted:
        if group in HOOKS and not has_hook(repo, group):
            if groups:
                raise BringUpError(f"nothing to test for {group}", HOOKS[group], "the room has no selftest module")
            not_run.append(f"{group}: no {HOOKS[group]}")
            continue
        say(f"self-test: {group}")
        part = (
            guard(say) if group == "guard" else gates(repo, stages, say) if group == "gates" else hook(repo, group, say)
        )
        parts[group] = part.counts()
        total.add(part)
    code = NO_VERDICT if not total.planted else GREEN if total.agrees else RED
    return {
        "schema": "plow.selftest/1",
        **total.counts(),
        "groups": parts,
        "failures": total.failures,
        "not_run": not_run,
        "exit_code": code,
    }


def guard(say: Report) -> Tally:
    """Every cheat of the catalogue and its control, each in a fresh copy of one sandbox."""
    from harness.cheats import Attempt, catalogue, sandbox

    tally = Tally()
    controls: dict[Attempt, list[str]] = {}  # several cheats have the same control; it runs once
    with tempfile.TemporaryDirectory(prefix="plow-selftest-") as folder:
        start = sandbox.make(Path(folder) / "start")
        for number, cheat in enumerate(catalogue()):
            found = cheat.bad(start.copy(Path(folder) / f"{number}-bad"))
            if cheat.control not in controls:
                controls[cheat.control] = cheat.control(start.copy(Path(folder) / f"{number}-control"))
            control = controls[cheat.control]
            caught = any(cheat.expect in line for line in found)
            tally.pair(cheat.name, caught, not control, f"found {found or control}" if not caught or control else "")
            say(f"  {'ok ' if caught and not control else 'BAD'} {cheat.name}")
    return tally


def gates(repo: Path, stages: Sequence[Stage], say: Report) -> Tally:
    """Stage.planted of every stage, in the stage's own process."""
    tally = Tally()
    for stage in stages:
        result = job(repo, stage.number, "planted", stage.gate_limit_s, {})
        if "planted" not in result:
            tally.failures.append(f"{stage.name}: {result['failure']}")
            continue
        if not result["planted"]:
            tally.failures.append(f"{stage.name}: plants nothing, so its gate's power is unknown")
        pinned = thresholds_of(stage, repo, "cpu")
        for sides in result["planted"]:
            caught, why = is_caught(stage, pinned, sides["bad"], sides["expect"])
            control = is_green(stage, pinned, sides["control"])
            tally.pair(f"{stage.name}: {sides['name']}", caught, not control, "; ".join([*why, *control][:3]))
            say(f"  {'ok ' if caught and not control else 'BAD'} {stage.name}: {sides['name']}")
    return tally


def is_caught(stage: Stage, pinned: Thresholds, raw: dict[str, Any], expect: str) -> tuple[bool, list[str]]:
    """(caught, what was seen). A missing tool catches nothing; the expected typed error or red check does."""
    if "error" in raw:
        error = raw["error"]
        lines = [f"{error['error']}: {error['line']}"]
        return error["error"] != "ToolMissing" and expect in lines[0], lines
    lines = is_green(stage, pinned, raw)
    return any(expect in line for line in lines), lines or ["green"]


def is_green(stage: Stage, pinned: Thresholds, raw: dict[str, Any]) -> list[str]:
    """Reasons why a planted subject's report is not green; it need not hold every declared check."""
    if "error" in raw:
        return [str(raw["error"]["line"])]
    reported = {c["name"] for c in raw["checks"] if isinstance(c, dict)}
    bounds = {name: bound for name, bound in pinned.items() if name in reported}
    return list(decide(replace(stage, checks=()), bounds, raw["checks"], raw["not_run"]).reasons)


def has_hook(repo: Path, group: str) -> bool:
    return (repo / HOOKS[group].replace(".", "/")).with_suffix(".py").exists()


def hook(repo: Path, group: str, say: Report) -> Tally:
    """Planted subjects of another room, run in a process of their own."""
    tally = Tally()
    result = job(repo, 0, "hook", HOOK_LIMIT_S, {"module": HOOKS[group]})
    if "hook" not in result:
        tally.failures.append(f"{group}: {result['failure']}")
        return tally
    for item in result["hook"]:
        tally.case(f"{group}: {item['name']}", item["control"], item["ok"], item["detail"])
        say(f"  {'ok ' if item['ok'] else 'BAD'} {group}: {item['name']}{' (control)' if item['control'] else ''}")
    return tally


def job(repo: Path, number: int, name: str, limit_s: float, params: dict[str, Any]) -> dict[str, Any]:
    """A job of harness.judge on the working tree, without a checkpoint; {"failure": why} when it gave no result."""
    with tempfile.TemporaryDirectory(prefix="plow-selftest-") as folder:
        scratch = Path(folder)
        context = StageContext(
            "selftest", "cpu", scratch / "no-checkpoint", scratch / "work", scratch / "evidence", repo, params
        )
        outcome = run_judge(repo, number, name, context, limit_s, scratch / "log.txt")
        if outcome.result is None:
            return {"failure": outcome.failure}
        error = outcome.result.get("error")
        return {"failure": str(error["line"])} if error else outcome.result

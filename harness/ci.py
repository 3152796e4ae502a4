"""Judge a pull request: the guard, the ledgers against the base, and every touched stage measured again.

Nothing is believed: a stage whose sources the diff touches, or whose ledger the diff grows, is judged again here. A
stage that the base had green must still be green; stale, missing, skipped and no verdict are red.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness import gate, git, guard, ledger, locate, sources
from harness.audit import short
from harness.errors import LedgerError
from harness.guard import Finding
from harness.machine import BringUp, Listener, silent
from harness.state import State, fold, word
from harness.verdict import GREEN, NO_VERDICT, RED
from plow.errors import PlowError
from stages.base import Stage


@dataclass(frozen=True)
class Result:
    """One stage of one bring-up. verdict: green | red | stale | missing | ... ; checks as in evidence."""

    bringup: str
    stage: int
    name: str
    verdict: str
    reasons: tuple[str, ...] = ()
    checks: tuple[dict[str, Any], ...] = ()
    seconds: float = 0.0

    @property
    def green(self) -> bool:
        return self.verdict == "green"


@dataclass
class CiReport:
    base: str
    commit: str
    findings: list[Finding] = field(default_factory=list)
    touched: list[int] = field(default_factory=list)
    results: list[Result] = field(default_factory=list)
    not_run: list[str] = field(default_factory=list)

    @property
    def exit_code(self) -> int:
        return RED if self.reasons() else GREEN

    def reasons(self) -> list[str]:
        """Everything that is red, one line each."""
        found = [f.line() for f in self.findings if f.red]
        return found + [
            f"{r.bringup} stage {r.stage}: {r.verdict}{': ' + '; '.join(r.reasons) if r.reasons else ''}"
            for r in self.results
            if not r.green
        ]

    def as_dict(self) -> dict[str, Any]:
        return {
            "schema": "plow.ci/1",
            "base": self.base,
            "commit": self.commit,
            "exit_code": self.exit_code,
            "reasons": self.reasons(),
            "findings": [f.__dict__ for f in self.findings],
            "touched": self.touched,
            "judged": [{**r.__dict__, "green": r.green} for r in self.results],
            "not_run": self.not_run,
        }


def run(repo: Path, base: str, root: Path, stages: Sequence[Stage], listen: Listener = silent) -> CiReport:
    """Judge HEAD against `base` with the bring-ups under `root`. Raises DirtyTree, GitError."""
    old, (head, _) = git.resolve(repo, base), gate.clean_commit(repo, stages)
    report = CiReport(old, head, guard.compare(repo, old, head))
    report.touched = [s.number for s in stages if touched(repo, old, head, s)]
    report.findings += lost_ledgers(repo, old)
    homes = [h.absolute() for h in locate.find(root)]
    for home in homes:
        judge_bringup(BringUp(home, repo, stages, listen), old, report)
    judged = {r.stage for r in report.results}
    for number in report.touched:
        if number not in judged:
            where = f"no bring-up under {root} has reached it" if homes else f"no bring-up under {root}"
            name = next(s.name for s in stages if s.number == number)
            report.results.append(Result("(none)", number, name, "missing", (f"its sources changed and {where}",)))
    return report


def touched(repo: Path, old: str, new: str, stage: Stage) -> bool:
    """Whether the two commits differ in a file that the stage's evidence depends on."""
    globs = sources.stage_globs(stage)
    before, after = ({p: e for p, e in git.tree(repo, c).items() if sources.matches(p, globs)} for c in (old, new))
    return before != after


def lost_ledgers(repo: Path, base: str) -> list[Finding]:
    """Ledgers of the base that are no byte prefix of what is on disk now (the guard compares commits only)."""
    found = []
    for path in git.tree(repo, base):
        if sources.matches(path, guard.LEDGERS):
            disk = (repo / path).read_bytes() if (repo / path).exists() else b""
            found += [
                Finding("records", path, f"on disk: {what}")
                for what in guard.ledger_faults(git.show(repo, base, path) or b"", disk, path)
            ]
    return found


def judge_bringup(bringup: BringUp, base: str, report: CiReport) -> None:
    """Append a result for every stage that must be green here."""
    label = f"{bringup.home.parent.name}/{bringup.home.name}"
    try:
        lines = ledger.read(bringup.path)
        state = bringup.state(lines)
    except PlowError as e:
        report.findings.append(Finding("records", str(bringup.path), e.line()))
        return
    before = base_state(bringup, base)
    grown = {line.data.get("stage") for line in lines[before.lines :] if line.kind in ("verdict", "work_failed")}
    room = Path(tempfile.mkdtemp(prefix="plow-ci-"))
    try:
        for stage in bringup.stages:
            now = state.stage(stage.number)
            was_green = before.stage(stage.number).status == "green"
            if stage.number not in (*report.touched, *grown):
                continue
            if now.status == "pending" and not was_green:
                report.not_run.append(f"{label} stage {stage.number} {stage.title}: not reached yet")
            elif now.status != "green":
                report.results.append(Result(label, stage.number, stage.name, word(now), now.reasons))
            elif now.dirty:
                report.results.append(
                    Result(label, stage.number, stage.name, "red", ("judged with --allow-dirty, which does not count",))
                )
            else:
                report.results.append(judge_again(bringup, state, stage, room, label))
    finally:
        shutil.rmtree(room, ignore_errors=True)


def base_state(bringup: BringUp, base: str) -> State:
    """The bring-up as the base's ledger has it; empty when the base does not track it."""
    path = bringup.path
    if not path.is_relative_to(bringup.repo):
        return State()
    raw = git.show(bringup.repo, base, str(path.relative_to(bringup.repo))) or b""
    try:
        return fold(ledger.parse(raw)[0])
    except LedgerError:
        return State()  # a finding already: the disk's ledger can not be an honest continuation of it


def judge_again(bringup: BringUp, state: State, stage: Stage, room: Path, label: str) -> Result:
    """The gate, measured now; a typed error is no verdict, which is red."""
    bringup.listen("gate", stage, {"bringup": label})
    try:
        subject = bringup.subject(state)
        judged = bringup.judge_with(subject, stage, bringup.home, room)
    except PlowError as e:
        return Result(label, stage.number, stage.name, "no verdict", (e.line(),))
    verdict = judged.verdict
    bringup.listen("verdict", stage, {"verdict": verdict, "seconds": judged.seconds})
    reasons = (
        verdict.reasons
        if verdict.exit_code != NO_VERDICT
        else (*verdict.reasons, f"no verdict at {short(subject.commit)}")
    )
    return Result(label, stage.number, stage.name, verdict.word, reasons, verdict.checks, judged.seconds)

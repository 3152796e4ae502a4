"""Cheats on the judge itself: its tree, its process, its environment, its report."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from harness import ci, evidence, gate, git
from harness.cheats import Cheat
from harness.cheats.records import append_verdict, last_evidence
from harness.cheats.sandbox import Sandbox
from harness.verdict import decide
from plow.errors import PlowError
from stages.base import Check, Stage

Attempt = Callable[[Sandbox], list[str]]


def dirty(change: Callable[[Sandbox], None]) -> Attempt:
    """Change the tree without a commit and ask for something to judge."""

    def attempt(box: Sandbox) -> list[str]:
        change(box)
        try:
            gate.clean_commit(box.root, box.stages)
        except PlowError as e:
            return [e.line()]
        return []

    return attempt


def hidden_edit(box: Sandbox) -> None:
    """Edit a file that the index is told not to look at."""
    git.git(box.root, "update-index", "--skip-worktree", "plow/candidate.py")
    box.candidate("2.0")


def ignored_module(box: Sandbox) -> None:
    box.write(".git/info/exclude", "*.so\n")
    box.write("harness/verdict.cpython-311-x86_64-linux-gnu.so", "x")


def report(*changes: Callable[[list[dict[str, Any]]], object]) -> Attempt:
    """Judge a report of the demo stage after changing it."""

    def attempt(box: Sandbox) -> list[str]:
        stage: Stage = box.stages[0]
        pinned = gate.pinned_thresholds(box.subject(), stage)
        good = {"error": 0.0, "tokens": True}
        checks = [
            Check.compare(n, v, pinned[n].relation, pinned[n].threshold, "repeat").__dict__ for n, v in good.items()
        ]
        for change in changes:
            change(checks)
        return list(decide(stage, pinned, checks, []).reasons)

    return attempt


def judged(value: str, more: str = "", limit_s: float = 20.0) -> Attempt:
    """Judge a candidate in the real judge's process."""

    def attempt(box: Sandbox) -> list[str]:
        box.candidate(value, more)
        return box.judge(replace(box.stages[0], gate_limit_s=limit_s))

    return attempt


def from_outside(value: str) -> Attempt:
    """PYTHONPATH and PLOW_* point at a better candidate outside the commit while `value` is judged."""

    def attempt(box: Sandbox) -> list[str]:
        other = box.root.parent / f"{box.root.name}-other"
        box.copy(other).candidate("1.0")
        (other / "sitecustomize.py").write_text("import plow.candidate\n")
        box.candidate(value)
        saved = dict(os.environ)
        os.environ.update(
            {"PYTHONPATH": str(other), "PLOW_VALUE": "1.0", "PYTHONSTARTUP": str(other / "sitecustomize.py")}
        )
        try:
            return box.judge()
        finally:
            os.environ.clear()
            os.environ.update(saved)

    return attempt


def filtered(value: str) -> Attempt:
    """A smudge filter of this clone turns a failing candidate into a good one as it is checked out."""

    def attempt(box: Sandbox) -> list[str]:
        box.candidate(value)
        box.commit()
        git.git(box.root, "config", "filter.fix.smudge", "sed s/2.0/1.0/")
        box.write(".git/info/attributes", "plow/candidate.py filter=fix\n")
        return box.judge()

    return attempt


def swapped(value: str) -> Attempt:
    """A replacement ref makes git show another blob for the candidate."""

    def attempt(box: Sandbox) -> list[str]:
        good = git.tree(box.root, box.base)["plow/candidate.py"].oid
        box.candidate(value)
        bad = git.tree(box.root, box.commit())["plow/candidate.py"].oid
        if bad != good:
            git.git(box.root, "replace", bad, good)
        return box.judge()

    return attempt


def forged(value: str) -> Attempt:
    """A ledger line and evidence that agree with each other in every field, for a candidate that was never judged."""

    def attempt(box: Sandbox) -> list[str]:
        box.candidate(value, "\n\nNOTE = 'new'\n")
        commit = box.commit()
        digest = box.subject().digest(box.stages[0])
        document = evidence.get(box.home / "evidence", last_evidence(box))
        fake = evidence.put(box.home / "evidence", {**document, "commit": commit, "source_digest": digest})
        append_verdict(box, commit=commit, source_digest=digest, evidence=fake)
        return ci.run(box.root, box.base, box.root / "bringups", box.stages).reasons()

    return attempt


def set_field(index: int, **fields: Any) -> Callable[[list[dict[str, Any]]], None]:
    return lambda checks: checks[index].update(fields)


EXIT = "\nimport os\nos._exit(0)\n"
WRITE = "\nfrom pathlib import Path\nPath('tests/golden/tokens.json').write_text('[1, 2, 3] ')\n"
HANG = "\nimport time\nif VALUE != 1.0:\n    time.sleep(60)\n"
CHILD = "\nimport subprocess, sys\nsubprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
honest = judged("1.0")
as_is = report()

CHEATS = [
    Cheat(
        "dirty tree",
        dirty(lambda box: box.candidate("2.0")),
        dirty(lambda box: box.write("docs/notes.md", "x")),
        "plow/candidate.py",
    ),
    Cheat("dirty tree hidden from git status", dirty(hidden_edit), dirty(lambda box: None), "plow/candidate.py"),
    Cheat(
        "ignored module beside the harness",
        dirty(ignored_module),
        dirty(lambda box: box.write("notes.so", "x")),
        "verdict.cpython",
    ),
    Cheat(
        "untracked gate file",
        dirty(lambda box: box.write("stages/s1_demo/extra.py", "")),
        dirty(lambda box: None),
        "extra.py",
    ),
    Cheat("NaN reported", report(set_field(0, measured=float("nan"))), as_is, "measured nan"),
    Cheat("failure called ok", report(set_field(0, measured=5.0)), as_is, "called it ok and it is not"),
    Cheat("check left out", report(lambda checks: checks.pop(0)), as_is, "declared, and missing"),
    Cheat("check turned into information", report(set_field(0, relation="info")), as_is, "thresholds.toml says '<='"),
    Cheat("relation turned round", report(set_field(0, relation=">=")), as_is, "thresholds.toml says '<='"),
    Cheat("threshold raised in the report", report(set_field(0, threshold=9.0)), as_is, "threshold 9 where"),
    Cheat("check reported twice", report(lambda checks: checks.append(checks[0])), as_is, "reported 2 times"),
    Cheat("no command to repeat it", report(set_field(1, command="")), as_is, "no command"),
    Cheat("exit 0 before the check", judged("1.0", EXIT), honest, "without a report"),
    Cheat("failing candidate", judged("2.0"), honest, "measured 1, must be <= 0.001"),
    Cheat("golden rewritten while judged", judged("1.0", WRITE), honest, "rewrote tests/golden"),
    Cheat("gate that never ends", judged("2.0", HANG, 0.8), honest, "time limit"),
    Cheat("process left behind by a failing gate", judged("2.0", CHILD), honest, "measured 1"),
    Cheat("environment override", from_outside("2.0"), from_outside("1.0"), "measured 1"),
    Cheat("smudge filter", filtered("2.0"), filtered("1.0"), "not what the commit holds"),
    Cheat("replacement ref", swapped("2.0"), swapped("1.0"), "measured 1"),
    Cheat("ledger and evidence forged to agree", forged("2.0"), forged("1.0"), "measured 1"),
]

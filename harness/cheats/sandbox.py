"""A small git repository with demo stages and a green bring-up: what cheats, and the harness's tests, act on."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from harness import gate, git, guard
from harness.child import Outcome
from harness.gate import Judged, Subject
from harness.git import WHO
from harness.machine import BringUp, Request
from harness.registry import no_gate, no_work
from harness.verdict import decide
from plow.errors import PlowError
from stages.base import Progress, Stage, Thresholds

SOURCE = Path(__file__).resolve().parents[2]
COPIED = (
    "harness",
    "prompts",
    "stages/base.py",
    "stages/__init__.py",
    "plow/__init__.py",
    "plow/errors.py",
    "plow/cli/__init__.py",
    "plow/cli/common.py",
)
ARCH, TARGET = "demo", "cpu"

CANDIDATE = '''"""The code under test."""

VALUE = {value}


def value() -> float:
    return VALUE


def tokens() -> list[int]:
    return [1, 2, 3]
'''
STAGE = '''"""Demo stage {n}: the candidate's value is 1, its tokens are the golden ones."""

from stages.base import Planted, Stage
from stages.s{n}_demo.gate import gate, on
from stages.s{n}_demo.work import work

OFF = Planted("value off by one", lambda c: on(2.0, [1, 2, 3], c), lambda c: on(1.0, [1, 2, 3], c), "error")
STAGE = Stage({n}, "s{n}_demo", "Demo {n}", ("plow/candidate.py", "tests/golden/*.json"), work, gate,
              checks=("error", "tokens"), planted=(OFF,), editable=("plow/candidate.py",),
              gate_limit_s=20.0, work_limit_s=20.0)
'''
GATE = """import json
import time
from pathlib import Path

from stages.base import GateReport, StageContext, Thresholds


def gate(ctx: StageContext) -> GateReport:
    from plow.candidate import tokens, value

    time.sleep(float(ctx.params.get("gate_sleep", 0)))
    return on(value(), tokens(), ctx)


def on(value: float, tokens: list, ctx: StageContext) -> GateReport:
    bounds = Thresholds.load(Path(__file__).with_name("thresholds.toml"), ctx.target)
    golden = json.loads((ctx.root / "tests/golden/tokens.json").read_text())
    repeat = "plow-bringup gate {n}"
    error = bounds.check("error", abs(value - 1.0), repeat)
    return GateReport({n}, [error, bounds.check("tokens", tokens == golden, repeat)])
"""
WORK = """import time

from stages.base import Progress, StageContext


def work(ctx: StageContext, progress: Progress) -> None:
    progress("making {n}", 0.5)
    time.sleep(float(ctx.params.get("work_sleep", 0)))
    (ctx.workdir / "made-{n}.txt").write_text(ctx.arch)
"""
THRESHOLDS = """[error]
relation = "<="
threshold = 0.001
why = "the demo's value is exact"

[tokens]
relation = "=="
threshold = true
"""


@dataclass
class Sandbox:
    """root: the repository. base: the commit that the bring-up was made at, plus its recorded ledger."""

    root: Path
    base: str = ""

    @property
    def home(self) -> Path:
        return self.root / "bringups" / ARCH / TARGET

    @property
    def ledger(self) -> Path:
        return self.home / "ledger.jsonl"

    @property
    def stages(self) -> list[Stage]:
        return [demo_stage(n) for n, _ in enumerate((self.root / "stages").glob("s*_demo"), start=1)]

    @property
    def bringup(self) -> BringUp:
        """With gates that run in this process on the committed files: fast, for cheats that are not about the judge."""
        return BringUp(self.home, self.root, self.stages, judge_with=judge_here)

    def write(self, path: str, text: str) -> None:
        full = self.root / path
        full.parent.mkdir(parents=True, exist_ok=True)
        full.write_text(text)

    def append(self, path: str, text: str) -> None:
        self.write(path, (self.root / path).read_text() + text)

    def candidate(self, value: str = "1.0", more: str = "") -> None:
        self.write("plow/candidate.py", CANDIDATE.format(value=value) + more)

    def commit(self, message: str = "change") -> str:
        git.git(self.root, "add", "--all", "--force", "--", ".", ":!**/work", ":!**/__pycache__", ":!**/*.lock")
        git.git(self.root, "commit", "--quiet", "--allow-empty", "-m", message, env=WHO)
        return git.resolve(self.root, "HEAD")

    def guard(self) -> list[str]:
        """Commit what is on disk; the guard's red findings against the base."""
        self.commit()
        return [f.line() for f in guard.compare(self.root, self.base, "HEAD") if f.red]

    def judge(self, stage: Stage | None = None) -> list[str]:
        """Commit what is on disk; reasons why the real gate, in its own process, is not green."""
        self.commit()
        stage = stage or self.stages[0]
        subject = self.subject()
        return list(gate.judge_stage(subject, stage, self.home, self.home / "work" / "judge").verdict.reasons)

    def subject(self) -> Subject:
        bringup = self.bringup
        return bringup.subject(bringup.state())

    def standing(self) -> list[str]:
        """Reasons why stage 1 is not green now, by ledger, evidence and sources; nothing is judged again."""
        try:
            first = self.bringup.state().stage(1)
        except PlowError as e:
            return [e.line()]
        return [] if first.status == "green" else [f"{first.status}: {'; '.join(first.reasons)}"]

    def copy(self, to: Path) -> Sandbox:
        shutil.copytree(self.root, to, symlinks=True)
        return Sandbox(to, self.base)


def demo_stage(number: int) -> Stage:
    """The facts of a demo stage, as its text above states them (a test compares the two)."""
    return Stage(
        number,
        f"s{number}_demo",
        f"Demo {number}",
        ("plow/candidate.py", "tests/golden/*.json"),
        no_work,
        no_gate,
        checks=("error", "tokens"),
        editable=("plow/candidate.py",),
        gate_limit_s=20.0,
        work_limit_s=20.0,
    )


def judge_here(subject: Subject, stage: Stage, home: Path, room: Path, progress: Progress | None = None) -> Judged:
    """The demo gate as this process computes it from the commit; the same evidence as the real one would store."""
    source = git.show(subject.repo, subject.commit, "plow/candidate.py") or b""
    names: dict[str, object] = {}
    exec(source, names)  # the sandbox's own text, written by this package
    measured = {"error": abs(float(str(names["VALUE"])) - 1.0), "tokens": True}
    pinned: Thresholds = gate.pinned_thresholds(subject, stage)
    checks = [pinned.check(name, value, "plow-bringup gate") for name, value in measured.items()]
    verdict = decide(stage, pinned, [c.__dict__ for c in checks], [])
    return gate.conclude(subject, stage, verdict, 0.0)


def make(root: Path, stages: int = 1) -> Sandbox:
    """A repository with `stages` demo stages, a checkpoint directory, and a green bring-up committed as the base."""
    box = empty(root, stages)
    bringup = box.bringup
    bringup.start(Request(ARCH, TARGET, str(root / "checkpoint")))
    bringup.work_with = nothing
    bringup.run()
    box.base = box.commit("record the bring-up")
    pack(box)
    return box


def pack(box: Sandbox) -> None:
    """One pack instead of a folder for each object: a copy of the sandbox costs a third."""
    git.git(box.root, "repack", "-a", "-d", "--quiet")


def nothing(*args: object) -> Outcome:
    """Work that is already done."""
    return Outcome({}, "", 0.0)


def empty(root: Path, stages: int = 1) -> Sandbox:
    """The same without a bring-up; the commit of the sources is the base."""
    for name in COPIED:
        source, to = SOURCE / name, root / name
        to.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, to, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, to)
    box = Sandbox(root)
    for n in range(1, stages + 1):
        box.write(f"stages/s{n}_demo/__init__.py", STAGE.format(n=n))
        box.write(f"stages/s{n}_demo/gate.py", f'"""Gate of demo stage {n}."""\n\n' + GATE.replace("{n}", str(n)))
        box.write(f"stages/s{n}_demo/work.py", f'"""Work of demo stage {n}."""\n\n' + WORK.replace("{n}", str(n)))
        box.write(f"stages/s{n}_demo/thresholds.toml", THRESHOLDS)
    box.candidate()
    box.write("plow/oracle/__init__.py", '"""Reference results."""\n')
    box.write("tests/golden/tokens.json", "[1, 2, 3]\n")
    box.write("tests/test_demo.py", "def test_tokens_are_golden() -> None:\n    assert [1, 2, 3] == [1, 2, 3]\n")
    box.write("pyproject.toml", '[project]\nname = "demo"\n[tool.pytest.ini_options]\naddopts = "-q"\n')
    box.write("checkpoint/config.json", "{}\n")
    subprocess.run(["git", "init", "--quiet", "--template=", "--initial-branch=main", str(root)], check=True)
    box.base = box.commit("start")
    pack(box)
    return box

"""The state machine of a bring-up: work, judge, record, one stage after the other, stopping at the first red.

Every step is recorded before and after it runs, and a step whose end is recorded is not run again for the same
sources. So a kill at any point costs the step it hit: `resume` reads the ledger and goes on.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness import evidence, gate, git, guard, ledger, prompts, sources
from harness.agents import AgentTask, make_agent
from harness.audit import audit
from harness.child import Outcome, run_judge
from harness.errors import BringUpError, SourceError
from harness.gate import Judged, Subject
from harness.ledger import Ledger, Line
from harness.state import State, fold, refresh
from harness.verdict import GREEN, RED, Verdict
from stages.base import Stage, StageContext, resolve_checkpoint

NAME = re.compile(r"[A-Za-z0-9][\w.-]*")
IGNORED = "work/\nprompts/\nreport.html\n*.lock\n*.tmp\n.gitignore\n"
Listener = Callable[[str, Stage, dict[str, Any]], None]
"""Called with ("work" | "gate" | "progress" | "verdict", stage, details) while a bring-up runs."""


def silent(event: str, stage: Stage, details: dict[str, Any]) -> None:
    return


@dataclass(frozen=True)
class Request:
    """What `new` starts: see `plow-bringup new --help`."""

    arch: str
    target: str
    checkpoint: str
    params: dict[str, Any] = field(default_factory=dict)
    bundle_out: str = ""
    agent: str = "none"


@dataclass
class BringUp:
    """A bring-up in `home` (= root/arch/target) of the checkout `repo`.

    work_with, judge_with: how a stage's work and gate run (a child process; tests put a function here).
    """

    home: Path
    repo: Path
    stages: Sequence[Stage]
    listen: Listener = silent
    work_with: Callable[..., Outcome] = run_judge
    judge_with: Callable[..., Judged] = gate.judge_stage

    @property
    def path(self) -> Path:
        return self.home / "ledger.jsonl"

    @property
    def evidence(self) -> Path:
        return self.home / "evidence"

    def start(self, request: Request) -> None:
        """Begin, or continue the same one: other params are recorded, another checkpoint is a BringUpError."""
        for word in (request.arch, request.target):
            if not NAME.fullmatch(word):
                raise BringUpError(f"bad name {word!r}", "", "use letters, digits, dot, dash and underscore")
        make_agent(request.agent)
        checkpoint = self.relative(resolve(request.checkpoint))
        base = git.resolve(self.repo, "HEAD")
        with Ledger(self.path) as book:
            evidence.write_atomic(self.home / ".gitignore", IGNORED.encode())
            state = fold(book.lines)
            wanted = {
                "params": request.params,
                "bundle_out": request.bundle_out and os.path.abspath(request.bundle_out),
            }
            if not state.arch:
                book.append(
                    "new",
                    {
                        "arch": request.arch,
                        "target": request.target,
                        "checkpoint": checkpoint,
                        "base": base,
                        "agent": request.agent,
                        **wanted,
                    },
                )
            elif state.checkpoint != checkpoint:
                raise BringUpError(
                    f"this bring-up is of another checkpoint, {state.checkpoint}",
                    str(self.home),
                    "use another --root or --target, or remove the folder",
                )
            elif {"params": dict(state.params), "bundle_out": state.bundle_out} != wanted:
                book.append("set", wanted)

    def relative(self, checkpoint: Path) -> str:
        """A path that means the same in another clone when the checkpoint lies inside the checkout."""
        full = Path(os.path.abspath(checkpoint))
        return str(full.relative_to(self.repo)) if full.is_relative_to(self.repo) else str(full)

    def subject(self, state: State, allow_dirty: bool = False, commit: str = "") -> Subject:
        """What would be judged now. Raises DirtyTree, or SourceError without the checkpoint."""
        dirty: tuple[str, ...] = ()
        if not commit:
            commit, dirty = gate.clean_commit(self.repo, self.stages, allow_dirty)
        checkpoint = self.repo / state.checkpoint
        digest = sources.checkpoint_digest(checkpoint, self.home / "work" / "checkpoint-digest.json")
        return Subject(self.repo, commit, state.arch, state.target, checkpoint, digest, dict(state.params), dirty)

    def state(self, lines: Sequence[Line] | None = None, subject: Subject | None = None) -> State:
        """Folded, audited, and compared with the sources of `subject` (default: HEAD)."""
        state = fold(ledger.read(self.path) if lines is None else lines)
        if subject is None:
            try:
                subject = self.subject(state, commit=git.resolve(self.repo, "HEAD"))
            except SourceError:
                return refresh(state, dict.fromkeys(s.number for s in self.stages), {})
        digests: dict[int, str | None] = {}
        for stage in self.stages:
            try:
                digests[stage.number] = subject.digest(stage)
            except SourceError:
                digests[stage.number] = None
        return refresh(state, digests, audit(state, self.stages, self.evidence, subject))

    def run(self, through: int | None = None, allow_dirty: bool = False, base: str = "") -> int:
        """Go on from where the ledger ends. Returns the exit code of the first stage that is not green, else 0."""
        with Ledger(self.path) as book:
            for stage in self.stages:
                if through is not None and stage.number > through:
                    break
                subject = self.subject(fold(book.lines), allow_dirty)
                if self.state(book.lines, subject).stage(stage.number).status == "green":
                    continue
                code = self.work(book, stage, subject)
                if code == GREEN:
                    code = self.judge(book, stage, self.subject(fold(book.lines), allow_dirty), base).exit_code
                if code != GREEN:
                    return code
        return GREEN

    def gate(self, number: int, allow_dirty: bool = False, base: str = "") -> Verdict:
        """Judge one stage now. Raises BringUpError unless every stage before it is green for the current sources."""
        stage = self.stage(number)
        with Ledger(self.path) as book:
            subject = self.subject(fold(book.lines), allow_dirty)
            state = self.state(book.lines, subject)
            for earlier in self.stages:
                before = state.stage(earlier.number)
                if earlier.number < number and before.status != "green":
                    raise BringUpError(
                        f"stage {earlier.number} is {before.status}",
                        str(self.home),
                        f"plow-bringup run --through {number}",
                    )
            return self.judge(book, stage, subject, base)

    def work(self, book: Ledger, stage: Stage, subject: Subject) -> int:
        """The agent's turn and the stage's own work, unless both are on record for these sources."""
        state = fold(book.lines)
        digest = subject.digest(stage)
        if state.stage(stage.number).worked == digest and (self.home / "work").is_dir():
            return GREEN
        about = {"stage": stage.number, "name": stage.name, "commit": subject.commit, "source_digest": digest}
        book.append("work_start", about)
        prompt = self.write_prompt(book, stage)
        self.listen("work", stage, {"prompt": str(prompt)})
        agent = make_agent(state.agent)
        done = agent.work(
            AgentTask(
                stage.number,
                prompt,
                self.repo,
                tuple(stage.editable or stage.sources),
                f"plow-bringup gate {stage.number}",
                stage.work_limit_s,
            )
        )
        for folder in ("work/scratch", "artifacts", "evidence"):
            (self.home / folder).mkdir(parents=True, exist_ok=True)
        params = {**subject.params, **({"bundle_out": state.bundle_out} if state.bundle_out else {})}
        context = StageContext(
            subject.arch,
            subject.target,
            subject.checkpoint,
            self.home / "work" / "scratch",
            self.evidence,
            self.repo,
            params,
        )
        outcome = self.work_with(
            self.repo,
            stage.number,
            "work",
            context,
            stage.work_limit_s,
            self.home / "work" / "logs" / f"{stage.name}-work.log",
            self._progress(stage),
        )
        code, reasons = work_result(outcome)
        if code == GREEN:
            book.append("work_done", {**about, "seconds": round(outcome.seconds, 3), "agent": done.note})
        else:
            book.append("work_failed", {**about, "exit_code": code, "reasons": reasons})
            self.listen("verdict", stage, {"verdict": Verdict(code, tuple(reasons)), "seconds": outcome.seconds})
        return code

    def judge(self, book: Ledger, stage: Stage, subject: Subject, base: str = "") -> Verdict:
        """Gate, then evidence, then the ledger line that names it. base: a ref the guard compares the commit with."""
        about = {"stage": stage.number, "name": stage.name, "commit": subject.commit}
        book.append("gate_start", about)
        self.listen("gate", stage, {})
        judged = self.judge_with(subject, stage, self.home, self.home / "work" / "judge", self._progress(stage))
        verdict, document = judged.verdict, judged.evidence
        caught = [f.line() for f in guard.compare(self.repo, base, subject.commit) if f.red] if base else []
        if caught:
            reasons = (*caught, *verdict.reasons)
            verdict = Verdict(RED, reasons, verdict.checks, verdict.not_run, verdict.environment)
            document = {**document, "exit_code": RED, "verdict": verdict.word, "reasons": list(reasons)}
        digest = evidence.put(self.evidence, document)
        book.append(
            "verdict",
            {
                **about,
                "source_digest": judged.source_digest,
                "exit_code": verdict.exit_code,
                "evidence": digest,
                "dirty": bool(subject.dirty),
                "headline": headline(stage, verdict),
                "reasons": list(verdict.reasons),
                "seconds": round(judged.seconds, 3),
            },
        )
        self.listen("verdict", stage, {"verdict": verdict, "seconds": judged.seconds})
        return verdict

    def write_prompt(self, book: Ledger, stage: Stage) -> Path:
        """Render the prompt into the bring-up's folder; the ledger gets its digest."""
        text = self.prompt(stage.number, book.lines)
        path = self.home / "prompts" / f"{stage.name}.md"
        evidence.write_atomic(path, text.encode())
        book.append("prompt", {"stage": stage.number, "sha256": hashlib.sha256(text.encode()).hexdigest()})
        return path

    def prompt(self, number: int, lines: Sequence[Line] | None = None) -> str:
        stage, state = self.stage(number), self.state(lines)
        now = state.stage(number)
        last = evidence.get(self.evidence, now.evidence) if now.evidence else None
        rules = guard.rules_at(self.repo, git.resolve(self.repo, "HEAD"))
        known = prompts.thresholds_of(stage, self.repo, state.target)
        table = prompts.variables(state, list(self.stages), stage, known, rules, self.options(), last)
        return prompts.render(self.repo / "prompts", stage, table)

    def options(self) -> str:
        """Options that select this bring-up on a command line, "" for the default root."""
        root, arch, target = self.home.parents[1], self.home.parent.name, self.home.name
        where = "" if root == Path.cwd() / "bringups" else f"--root {os.path.relpath(root)} "
        return f"{where}--arch {arch} --target {target}"

    def next_command(self) -> str:
        """The one command to run now."""
        state = self.state()
        waiting = [s for s in self.stages if state.stage(s.number).status != "green"]
        if not waiting:
            return f"plow-bringup report {self.options()}"
        now = state.stage(waiting[0].number)
        word = "prompt" if now.status == "red" and now.exit_code in (RED, None) else "resume"
        return f"plow-bringup {word}{f' {waiting[0].number}' if word == 'prompt' else ''} {self.options()}"

    def stage(self, number: int) -> Stage:
        for stage in self.stages:
            if stage.number == number:
                return stage
        raise BringUpError(f"no stage {number}", "", f"there are {', '.join(str(s.number) for s in self.stages)}")

    def _progress(self, stage: Stage) -> Callable[..., None]:
        def progress(text: str, done: float | None = None) -> None:
            self.listen("progress", stage, {"text": text, "done": done})

        return progress


def resolve(checkpoint: str) -> Path:
    """A directory as it is, `org/name` fetched from the hub."""
    path = Path(checkpoint).expanduser()
    return path if path.is_dir() else resolve_checkpoint(checkpoint)


def work_result(outcome: Outcome) -> tuple[int, list[str]]:
    if outcome.result is None:
        return RED, [f"work {outcome.failure}"]
    error = outcome.result.get("error")
    return (error["exit_code"] or RED, [f"{error['error']}: {error['line']}"]) if error else (GREEN, [])


def headline(stage: Stage, verdict: Verdict) -> list[list[Any]]:
    """Rows [name, measured, relation, threshold]: the stage's chosen checks, else its first two."""
    chosen = [c for c in verdict.checks if c["name"] in stage.headline] or list(verdict.checks[:2])
    return [[c["name"], c["measured"], c["relation"], c["threshold"]] for c in chosen]

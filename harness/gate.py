"""The gate runner: judge one stage of one commit in a clean worktree, and turn what it measured into a verdict."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness import git, guard, sources, verdict
from harness.child import Outcome, run_judge
from harness.errors import DirtyTree
from harness.evidence import SCHEMA
from harness.lease import lease
from harness.verdict import NO_VERDICT, RED, Verdict, decide, red
from stages.base import Progress, Stage, StageContext, Thresholds


@dataclass(frozen=True)
class Subject:
    """What is judged: a commit of `repo`, and the bring-up's architecture, target, checkpoint and params.

    dirty: files whose uncommitted state was allowed in; `commit` is then a snapshot that no branch holds.
    """

    repo: Path
    commit: str
    arch: str
    target: str
    checkpoint: Path
    checkpoint_digest: str
    params: dict[str, Any] = field(default_factory=dict)
    dirty: tuple[str, ...] = ()

    @property
    def identity(self) -> dict[str, Any]:
        return {"arch": self.arch, "target": self.target, "checkpoint": self.checkpoint_digest, "params": self.params}

    def digest(self, stage: Stage) -> str:
        return sources.source_digest(self.repo, self.commit, stage, self.identity)


@dataclass(frozen=True)
class Judged:
    """A verdict, the evidence document to store, and what it is evidence of."""

    verdict: Verdict
    source_digest: str
    evidence: dict[str, Any]
    seconds: float


def clean_commit(repo: Path, stages: Sequence[Stage], allow_dirty: bool = False) -> tuple[str, tuple[str, ...]]:
    """(HEAD, ()) when the protected files and the stages' sources on disk are the committed ones.

    Otherwise raises DirtyTree, or with `allow_dirty` returns a snapshot commit and the files that differ.
    """
    head = git.resolve(repo, "HEAD")
    globs = [*guard.rules_at(repo, head).protected, *(g for s in stages for g in sources.stage_globs(s))]
    dirty = sources.changed_on_disk(repo, head, globs)
    if not dirty:
        return head, ()
    if not allow_dirty:
        more = f" and {len(dirty) - 6} more" if len(dirty) > 6 else ""
        raise DirtyTree(
            f"uncommitted: {', '.join(dirty[:6])}{more}",
            str(repo),
            "commit them (or --allow-dirty for a verdict that does not count in CI)",
        )
    return git.snapshot(repo, dirty), tuple(dirty)


@contextmanager
def checkout(repo: Path, commit: str, room: Path) -> Iterator[Path]:
    """A worktree of the commit at `room/checkout`, removed afterwards; one left by a killed run is replaced."""
    path = room / "checkout"
    git.remove_worktree(repo, path)
    room.mkdir(parents=True, exist_ok=True)
    git.add_worktree(repo, commit, path)
    try:
        yield path
    finally:
        git.remove_worktree(repo, path)


def judge_stage(subject: Subject, stage: Stage, home: Path, room: Path, progress: Progress | None = None) -> Judged:
    """Run the stage's gate and decide. home: the bring-up's folder. room: scratch of the harness, emptied here."""
    with lease() if stage.timed else nullcontext(), checkout(subject.repo, subject.commit, room) as root:
        found, seconds = _judge_in(root, subject, stage, home, room, progress)
    return conclude(subject, stage, found, seconds)


def conclude(subject: Subject, stage: Stage, found: Verdict, seconds: float) -> Judged:
    """The verdict with its evidence document, which holds no time of day: equal measurements have equal digests."""
    digest = subject.digest(stage)
    document = {
        "schema": SCHEMA,
        "stage": stage.number,
        "name": stage.name,
        "commit": subject.commit,
        "source_digest": digest,
        **subject.identity,
        "dirty": list(subject.dirty),
        "verdict": found.word,
        "exit_code": found.exit_code,
        "reasons": list(found.reasons),
        "checks": list(found.checks),
        "not_run": list(found.not_run),
        "environment": dict(found.environment),
    }
    return Judged(found, digest, document, seconds)


def _judge_in(
    root: Path, subject: Subject, stage: Stage, home: Path, room: Path, progress: Progress | None
) -> tuple[Verdict, float]:
    """(verdict, seconds). The checkout must be the commit's bytes before the gate and after it."""
    wrong = sources.changed_on_disk(root, subject.commit, ["**"], subject.repo)
    links = sources.escaping_links(root, subject.repo, subject.commit)
    if wrong or links:
        what = f"{links[0]} leads out of the checkout" if links else f"{wrong[0]} is not what the commit holds"
        return red(f"checkout refused: {what}"), 0.0
    scratch = room / "scratch"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    context = StageContext(
        subject.arch, subject.target, subject.checkpoint, scratch, home / "evidence", root, subject.params
    )
    outcome = run_judge(root, stage.number, "gate", context, stage.gate_limit_s, room / f"{stage.name}.log", progress)
    shutil.rmtree(scratch, ignore_errors=True)
    rewritten = sources.changed_on_disk(root, subject.commit, ["**"], subject.repo)
    if rewritten:
        return red(f"the gate's run rewrote {rewritten[0]}"), outcome.seconds
    return _verdict(outcome, stage, pinned_thresholds(subject, stage)), outcome.seconds


def pinned_thresholds(subject: Subject, stage: Stage) -> Thresholds:
    """thresholds.toml of the commit, read from git rather than from any disk."""
    folder = sources.folder_of(stage, git.tree(subject.repo, subject.commit))
    text = git.show(subject.repo, subject.commit, f"{folder}/thresholds.toml") or b""
    return Thresholds.parse(text.decode(), subject.target, f"{folder}/thresholds.toml")


def _verdict(outcome: Outcome, stage: Stage, pinned: Thresholds) -> Verdict:
    result = outcome.result
    if result is None:
        return red(f"gate {outcome.failure}")
    if "error" in result:
        error = result["error"]
        code = error["exit_code"] if error["exit_code"] in verdict.WORDS and error["exit_code"] else NO_VERDICT
        return Verdict(code, (f"{error['error']}: {error['line']}",), environment=result["environment"])
    if not isinstance(result.get("checks"), list) or not isinstance(result.get("not_run"), list):
        return Verdict(RED, ("the gate's report has no list of checks",))
    return decide(stage, pinned, result["checks"], result["not_run"], result["environment"])

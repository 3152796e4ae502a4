"""Does the evidence say what the ledger says? Read again, recomputed, never believed.

Catches evidence written by hand, reused for other sources, edited or removed, and verdicts of commits that history no
longer holds. What it can not catch (a forged ledger with forged evidence to match), judging again in CI does.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness import evidence, git
from harness.errors import EvidenceError
from harness.gate import Subject, pinned_thresholds
from harness.state import StageState, State
from harness.verdict import decide
from plow.errors import PlowError
from stages.base import Stage

BOUND = ("commit", "source_digest", "exit_code")


def audit(state: State, stages: Sequence[Stage], folder: Path, subject: Subject) -> dict[int, list[str]]:
    """Problems of every green stage's latest verdict. folder: the bring-up's evidence. subject: what is current now."""
    return {
        s.number: problems(state.stage(s.number), s, folder, subject)
        for s in stages
        if state.stage(s.number).status == "green"
    }


def problems(stage_state: StageState, stage: Stage, folder: Path, subject: Subject) -> list[str]:
    try:
        document = evidence.get(folder, stage_state.evidence)
    except EvidenceError as e:
        return [e.line()]
    found = [
        f"evidence says {key} {short(document.get(key))}, the ledger {short(getattr(stage_state, key))}"
        for key in BOUND
        if document.get(key) != getattr(stage_state, key)
    ]
    if document.get("stage") != stage.number or (document.get("arch"), document.get("target")) != (
        subject.arch,
        subject.target,
    ):
        found.append("evidence is about another stage or bring-up")
    return found + _recompute(stage_state, stage, document, subject)


def _recompute(stage_state: StageState, stage: Stage, document: dict[str, Any], subject: Subject) -> list[str]:
    """Judge the stored checks again, and derive the source digest again from the commit it names."""
    judged = Subject(
        subject.repo,
        stage_state.commit,
        subject.arch,
        subject.target,
        subject.checkpoint,
        str(document.get("checkpoint")),
        document.get("params") or {},
        tuple(document.get("dirty") or ()),
    )
    try:
        if not stage_state.dirty and not git.is_ancestor(subject.repo, stage_state.commit, subject.commit):
            return [f"it was judged at {short(stage_state.commit)}, which is not in the history of HEAD"]
        if judged.digest(stage) != stage_state.source_digest:
            return ["the recorded source digest is not that of the recorded commit"]
        verdict = decide(
            stage,
            pinned_thresholds(judged, stage),
            list(document.get("checks") or ()),
            list(document.get("not_run") or ()),
        )
    except PlowError as e:
        return [e.line()]
    return [f"stored checks do not make it green: {verdict.reasons[0]}"] if not verdict.green else []


def short(value: Any) -> str:
    text = str(value)
    return text[:12] if len(text) >= 40 else text

"""The state of a bring-up: a pure fold over its ledger lines, and what other sources make of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from harness.ledger import Line
from harness.verdict import GREEN, WORDS

STATUSES = ("pending", "running", "green", "red", "stale")


@dataclass(frozen=True)
class StageState:
    """Where one stage stands.

    worked: source digest that its last finished work was done for ("" before work, and again after a red verdict).
    headline: [name, measured, relation, threshold] rows. reasons: why it is not green.
    """

    number: int
    status: str = "pending"
    commit: str = ""
    source_digest: str = ""
    evidence: str = ""
    exit_code: int | None = None
    worked: str = ""
    headline: tuple[tuple[Any, ...], ...] = ()
    reasons: tuple[str, ...] = ()
    dirty: bool = False
    time: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class State:
    arch: str = ""
    target: str = ""
    checkpoint: str = ""
    base: str = ""
    agent: str = "none"
    bundle_out: str = ""
    params: Mapping[str, Any] = field(default_factory=dict)
    stages: Mapping[int, StageState] = field(default_factory=dict)
    lines: int = 0
    head: str = ""

    def stage(self, number: int) -> StageState:
        return self.stages.get(number, StageState(number))


def fold(lines: Iterable[Line]) -> State:
    """State after the lines; depends on nothing else, so any reader of the ledger gets the same one."""
    state = State()
    for line in lines:
        state = replace(step(state, line), lines=line.seq + 1, head=line.hash)
    return state


def step(state: State, line: Line) -> State:
    data = line.data
    if line.kind == "new":
        keys = ("arch", "target", "checkpoint", "base", "agent", "bundle_out", "params")
        return replace(state, **{k: data[k] for k in keys})
    if line.kind == "set":
        return replace(state, params=data["params"], bundle_out=data["bundle_out"])
    if "stage" not in data:
        return state
    old = state.stage(data["stage"])
    return replace(state, stages={**state.stages, old.number: stage_step(old, line)})


def stage_step(old: StageState, line: Line) -> StageState:
    data = line.data
    if line.kind in ("work_start", "gate_start"):
        return replace(old, status="running", reasons=())
    if line.kind == "work_done":
        return replace(old, status="running", worked=data["source_digest"], reasons=())
    if line.kind == "work_failed":
        return StageState(
            old.number,
            "red",
            data["commit"],
            data["source_digest"],
            exit_code=data["exit_code"],
            reasons=tuple(data["reasons"]),
            time=line.time,
        )
    if line.kind == "verdict":
        green = data["exit_code"] == GREEN
        return StageState(
            old.number,
            "green" if green else "red",
            data["commit"],
            data["source_digest"],
            data["evidence"],
            data["exit_code"],
            old.worked if green else "",
            tuple(tuple(row) for row in data["headline"]),
            tuple(data["reasons"]),
            bool(data["dirty"]),
            line.time,
            data["seconds"],
        )
    return old


def refresh(state: State, digests: Mapping[int, str | None], problems: Mapping[int, list[str]]) -> State:
    """The state as of the current sources: a green stage with other sources is stale, one with a problem is red.

    digests: current source digest of each stage, None when it can not be had (the checkpoint is gone, for instance).
    problems: what the audit found about a stage's evidence.
    """
    stages = {}
    for number, digest in digests.items():
        stage = state.stage(number)
        if stage.status == "green" and stage.source_digest != digest:
            why = (
                "its sources, checkpoint or params changed since it was judged"
                if digest
                else "its sources can not be read"
            )
            stage = replace(stage, status="stale", worked="" if not digest else stage.worked, reasons=(why,))
        elif stage.status == "green" and problems.get(number):
            stage = replace(stage, status="red", worked="", reasons=tuple(problems[number]))
        stages[number] = stage
    return replace(state, stages=stages)


def word(stage: StageState) -> str:
    """Status for a reader: a red that was no verdict says so."""
    if stage.status == "red" and stage.exit_code not in (None, 0, 1):
        return f"red ({WORDS[stage.exit_code or 0]})"
    return stage.status

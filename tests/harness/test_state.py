"""State is a fold over ledger lines and nothing else."""

from __future__ import annotations

from typing import Any

from harness.ledger import GENESIS, Line, make_line
from harness.state import State, fold, refresh, word

NEW = (
    "new",
    {"arch": "llama", "target": "cpu", "checkpoint": "c", "base": "b", "agent": "none", "bundle_out": "", "params": {}},
)
START = ("work_start", {"stage": 1, "name": "s1", "commit": "c", "source_digest": "d"})
DONE = ("work_done", {"stage": 1, "name": "s1", "commit": "c", "source_digest": "d", "seconds": 1.0})
GATE = ("gate_start", {"stage": 1, "name": "s1", "commit": "c"})


def verdict(code: int, digest: str = "d") -> tuple[str, dict[str, Any]]:
    return "verdict", {
        "stage": 1,
        "commit": "c",
        "source_digest": digest,
        "exit_code": code,
        "evidence": "e",
        "dirty": False,
        "headline": [["error", 0.0, "<=", 1.0]],
        "reasons": [] if code == 0 else ["bad"],
        "seconds": 2.0,
    }


def state_of(*events: tuple[str, dict[str, Any]]) -> State:
    lines: list[Line] = []
    for kind, data in events:
        lines.append(make_line(len(lines), lines[-1].hash if lines else GENESIS, kind, "t", data))
    return fold(lines)


def test_a_stage_walks_from_pending_through_running_to_green() -> None:
    seen = [state_of(*[NEW, START, DONE, GATE, verdict(0)][:n]).stage(1).status for n in range(1, 6)]
    assert seen == ["pending", "running", "running", "running", "green"]


def test_a_red_verdict_forgets_the_work_and_keeps_the_reasons() -> None:
    red = state_of(NEW, START, DONE, GATE, verdict(1)).stage(1)
    assert (red.status, red.worked, red.reasons, red.exit_code) == ("red", "", ("bad",), 1)
    assert state_of(NEW, START, DONE, GATE, verdict(0)).stage(1).worked == "d"


def test_failed_work_is_red() -> None:
    failed = ("work_failed", {"stage": 1, "commit": "c", "source_digest": "d", "exit_code": 2, "reasons": ["no tool"]})
    red = state_of(NEW, START, failed).stage(1)
    assert red.status == "red" and word(red) == "red (no verdict)"


def test_later_lines_win_and_other_kinds_change_no_stage() -> None:
    state = state_of(
        NEW, verdict(1), verdict(0), ("repair", {"cut_bytes": 3}), ("set", {"params": {"k": 1}, "bundle_out": "x"})
    )
    assert state.stage(1).status == "green" and state.params == {"k": 1} and state.lines == 5


def test_green_is_stale_for_other_sources_and_red_for_bad_evidence() -> None:
    state = state_of(NEW, verdict(0))
    assert refresh(state, {1: "d", 2: "x"}, {}).stage(1).status == "green"
    assert refresh(state, {1: "other"}, {}).stage(1).status == "stale"
    assert refresh(state, {1: None}, {}).stage(1).status == "stale"
    assert refresh(state, {1: "d"}, {1: ["edited"]}).stage(1).status == "red"
    assert refresh(state_of(NEW, verdict(1)), {1: "other"}, {}).stage(1).status == "red"

"""The bring-up as one HTML file: stages, every check with measured value and threshold, the ledger as history."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2

from harness import evidence, ledger
from harness.errors import EvidenceError
from harness.ledger import Line
from harness.machine import BringUp
from harness.state import fold, word
from harness.verdict import show


def render(bringup: BringUp) -> str:
    """The page. It holds no script and fetches nothing, so it can be attached to a pull request."""
    lines = ledger.read(bringup.path)
    state = bringup.state(lines)
    stages = [
        {
            "number": s.number,
            "title": s.title,
            "name": s.name,
            "now": state.stage(s.number),
            "word": word(state.stage(s.number)),
            "evidence": _evidence(bringup, state.stage(s.number).evidence),
            "attempts": attempts(lines, s.number),
        }
        for s in bringup.stages
    ]
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["show"] = show
    page = environment.get_template("report.html.j2")
    return page.render(state=state, stages=stages, history=history(lines), next=bringup.next_command(), head=state.head)


def _evidence(bringup: BringUp, digest: str) -> dict[str, Any]:
    """The stored document, or {"problem": why} for a reader who must not see a hole as green."""
    if not digest:
        return {}
    try:
        return evidence.get(bringup.evidence, digest)
    except EvidenceError as e:
        return {"problem": e.line()}


def attempts(lines: Sequence[Line], number: int) -> list[dict[str, Any]]:
    """Verdicts of one stage, oldest first."""
    return [
        {
            "time": line.time,
            "green": line.data["exit_code"] == 0,
            "commit": line.data["commit"],
            "seconds": line.data["seconds"],
            "reasons": line.data["reasons"],
        }
        for line in lines
        if line.kind == "verdict" and line.data["stage"] == number
    ]


def history(lines: Sequence[Line]) -> list[dict[str, Any]]:
    """Ledger lines as a reader wants them: what happened, to which stage, and how it ended."""
    return [
        {
            "seq": line.seq,
            "time": line.time,
            "kind": line.kind.replace("_", " "),
            "stage": line.data.get("stage", ""),
            "text": _text(line),
        }
        for line in lines
    ]


def _text(line: Line) -> str:
    if line.kind == "verdict":
        state = fold([line]).stage(line.data["stage"])
        return f"{word(state)} {'; '.join(state.reasons)}".strip()
    if line.kind == "new":
        return f"{line.data['arch']} on {line.data['target']} from {line.data['checkpoint']}"
    if line.kind == "work_failed":
        return "; ".join(line.data["reasons"])
    if line.kind == "repair":
        return f"cut {line.data['cut_bytes']} bytes of a write that was interrupted"
    return str(line.data.get("commit", ""))[:12]

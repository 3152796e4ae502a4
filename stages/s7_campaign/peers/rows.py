"""A line of the result: schema plow.decode/1, as h200.py writes it for our bundle, and what an arm adds to it."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

SCHEMA = "plow.decode/1"


@dataclass
class Run:
    """What all lines of a run have in common. ceiling: bytes a second of a streaming read of the same card."""

    model: str
    batch: int
    ctx: int
    steps: int
    ceiling: float
    card: str
    driver: int
    versions: dict[str, str]
    command: str


@dataclass
class Measured:
    """An arm's part: bytes a step must read, milliseconds a step of every round, the check. reason: why not valid."""

    arm: str
    bytes: int
    rounds_ms: list[float] = field(default_factory=list)
    check: dict[str, float] = field(default_factory=dict)
    note: str = ""
    reason: str = ""

    @property
    def valid(self) -> bool:
        return not self.reason and bool(self.rounds_ms)


def row(run: Run, arm: Measured) -> dict[str, Any]:
    """The line of an arm. An invalid one has no time (ms and pct_of_ceiling null), a reason, and the rounds it had."""
    ms = statistics.median(arm.rounds_ms) if arm.valid else None
    found: dict[str, Any] = {
        "schema": SCHEMA,
        "arm": arm.arm,
        "model": run.model,
        "batch": run.batch,
        "ctx": run.ctx,
        "ms": None if ms is None else round(ms, 4),
        "rounds_ms": [round(t, 4) for t in arm.rounds_ms],
        "bytes": arm.bytes,
        "n": len(arm.rounds_ms) * run.steps,
        "ceiling_gbs": round(run.ceiling / 1e9),
        "pct_of_ceiling": None if ms is None else round(arm.bytes / ms / 1e-3 / run.ceiling * 100, 1),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "card": run.card,
        "driver": run.driver,
        "versions": run.versions,
        "command": run.command,
        "valid": arm.valid,
    }
    extra = {"check": {k: round(v, 5) for k, v in arm.check.items() if math.isfinite(v)}, "note": arm.note}
    found |= {k: v for k, v in extra.items() if v}
    if not arm.valid:
        found["reason"] = arm.reason or "not timed"
    return found


def table(lines: list[dict[str, Any]]) -> str:
    """For people: one line an arm, fastest first."""
    ordered = sorted(lines, key=lambda r: (r["ms"] is None, r["ms"]))
    text = []
    for r in ordered:
        value = f"{r['ms']:9.4f} ms  {r['pct_of_ceiling']:5.1f} %" if r["valid"] else f"invalid: {r['reason']}"
        text.append(f"{r['arm']:34s} {value}")
    return "\n".join(text)

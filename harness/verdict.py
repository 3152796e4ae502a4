"""The rules of a verdict: pure functions from what a gate reported to green, red or no verdict, with reasons."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from stages.base import RELATIONS, Measured, Stage, Threshold, holds

GREEN, RED, NO_VERDICT, LEASE_TIMEOUT, CONTENDED = 0, 1, 2, 75, 76
WORDS = {GREEN: "green", RED: "red", NO_VERDICT: "no verdict", LEASE_TIMEOUT: "lease timeout", CONTENDED: "contended"}
CHECK_FIELDS = {"name", "measured", "threshold", "relation", "ok", "command", "detail"}


@dataclass(frozen=True)
class Verdict:
    """exit_code: one of the five above. reasons: why it is not green, empty when it is."""

    exit_code: int
    reasons: tuple[str, ...] = ()
    checks: tuple[dict[str, Any], ...] = ()
    not_run: tuple[str, ...] = ()
    environment: Mapping[str, Any] = field(default_factory=dict)

    @property
    def word(self) -> str:
        return WORDS[self.exit_code]

    @property
    def green(self) -> bool:
        return self.exit_code == GREEN


def red(reason: str) -> Verdict:
    return Verdict(RED, (reason,))


def decide(
    stage: Stage,
    pinned: Mapping[str, Threshold],
    checks: list[Any],
    not_run: list[str],
    environment: Mapping[str, Any] | None = None,
) -> Verdict:
    """Judge a gate's raw report.

    Red for: a line that is no check; a name reported twice; a measured value that does not hold (NaN never holds); an
    `ok` that disagrees; a relation or threshold other than `pinned` (thresholds.toml of the commit); no command to
    repeat it; a declared check (by the stage or by the file) that is missing, not run, or turned into `info`
    without the file saying so.
    """
    lines, reasons = [], []
    for raw in checks:
        if not isinstance(raw, dict) or set(raw) != CHECK_FIELDS or raw["relation"] not in RELATIONS:
            reasons.append(f"not a check: {str(raw)[:80]}")
            continue
        ok = holds(raw["measured"], raw["relation"], raw["threshold"])
        why = _faults(stage, pinned.get(raw["name"]), raw, ok)
        reasons += [f"{raw['name']}: {w}" for w in why]
        lines.append(
            {**raw, "ok": not why, "measured": printable(raw["measured"]), "threshold": printable(raw["threshold"])}
        )
    names = [line["name"] for line in lines]
    reasons += [f"{n}: reported {names.count(n)} times" for n in dict.fromkeys(names) if names.count(n) > 1]
    for name in dict.fromkeys((*stage.checks, *pinned)):
        if name not in names:
            reasons.append(f"{name}: declared, and not run" if name in not_run else f"{name}: declared, and missing")
    if not lines:
        reasons.append("the gate reported no check")
    return Verdict(RED if reasons else GREEN, tuple(reasons), tuple(lines), tuple(not_run), environment or {})


def _faults(stage: Stage, pin: Threshold | None, raw: dict[str, Any], ok: bool) -> list[str]:
    found = []
    if not ok:
        found.append(
            f"measured {show(raw['measured'])}, must be {raw['relation']} {show(raw['threshold'])}"
            if raw["relation"] != "info"
            else f"measured {show(raw['measured'])}"
        )
    if bool(raw["ok"]) and not ok:
        found.append("the gate called it ok and it is not")
    if not raw["ok"] and ok:
        found.append(f"the gate itself calls it failed{': ' + str(raw['detail']) if raw['detail'] else ''}")
    if pin and raw["relation"] != pin.relation:
        found.append(f"relation {raw['relation']!r} where thresholds.toml says {pin.relation!r}")
    elif pin and pin.relation != "info" and raw["threshold"] != pin.threshold:
        found.append(f"threshold {show(raw['threshold'])} where thresholds.toml says {show(pin.threshold)}")
    if raw["name"] in stage.checks and raw["relation"] == "info" and pin is None:
        found.append("declared, and reported as information only")
    if raw["relation"] != "info" and not raw["command"]:
        found.append("no command to repeat it")
    return found


def printable(value: Measured) -> Measured:
    """A value that JSON can hold; NaN and infinities become text (and were red before that)."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def show(value: Any) -> str:
    """A value as a person reads it: 4 significant digits for a float."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)

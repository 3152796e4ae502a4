"""What a stage is made of: its context, its checks, its report, and the definition that the harness runs.

A stage's gate measures; it does not decide. The harness re-evaluates every relation itself, compares it with
`thresholds.toml` of the commit, and turns the stage red for a declared check that is missing (harness/verdict.py).
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from plow.errors import PlowError

Measured = float | int | str | bool | None
RELATIONS = ("<=", ">=", "==", "info")


class StageError(PlowError):
    """A stage is defined wrongly, or its gate reports something that is not a check."""


class Contended(PlowError):
    """Something else uses the machine or the bring-up, so a measurement or a write would not be trustworthy."""

    exit_code = 76


class Progress(Protocol):
    """Called by long work. text: what is being done now; done: fraction in [0, 1] when it is known."""

    def __call__(self, text: str, done: float | None = None) -> None: ...


@dataclass(frozen=True)
class StageContext:
    """Where a stage works.

    checkpoint: HF directory. workdir: scratch; one folder that lasts for all `work`, a fresh empty one for every
    gate. evidence: the folder of judged evidence (written by the harness only). root: the checkout that is judged
    (gate) or worked on (work). params: `--set key=value`; `bundle_out` is there for work when `--bundle-out` was given.
    """

    arch: str
    target: str
    checkpoint: Path
    workdir: Path
    evidence: Path
    root: Path
    params: dict[str, Any] = field(default_factory=dict)

    @property
    def artifacts(self) -> Path:
        """Files that work leaves for gates (a tune database, certificates): claims to be verified, not trusted."""
        return self.evidence.parent / "artifacts"


@dataclass(frozen=True)
class Check:
    """One line of a gate: what was measured, what it is held against, and the command that measures it again."""

    name: str
    measured: Measured
    threshold: Measured
    relation: str
    ok: bool
    command: str = ""
    detail: str = ""

    @classmethod
    def compare(
        cls, name: str, measured: Any, relation: str, threshold: Any, command: str = "", detail: str = ""
    ) -> Check:
        """A check whose `ok` follows from the relation; numpy scalars become Python ones."""
        m, t = plain(measured), plain(threshold)
        return cls(name, m, t, relation, holds(m, relation, t), command, detail)


def plain(value: Any) -> Measured:
    """A JSON scalar. Raises StageError for anything else, so that no array slips into evidence."""
    if value is not None and not isinstance(value, (bool, int, float, str)) and hasattr(value, "item"):
        value = value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise StageError(f"a check needs a scalar, got {type(value).__name__}", repr(value)[:60], "reduce it first")


def holds(measured: Measured, relation: str, threshold: Measured) -> bool:
    """Whether `measured relation threshold`. NaN and infinities never hold; numbers never equal booleans or text."""
    if isinstance(measured, float) and not math.isfinite(measured):
        return False
    if relation == "info":
        return True
    if relation == "==":
        return (
            isinstance(measured, bool) == isinstance(threshold, bool) and measured is not None and measured == threshold
        )
    if isinstance(measured, bool) or isinstance(threshold, bool):
        return False
    if not isinstance(measured, (int, float)) or not isinstance(threshold, (int, float)) or math.isnan(threshold):
        return False
    return {"<=": measured <= threshold, ">=": measured >= threshold}.get(relation, False)


@dataclass
class GateReport:
    """What a gate measured. not_run: what it can not judge here and says so; a declared check listed there is red."""

    stage: int
    checks: list[Check] = field(default_factory=list)
    not_run: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Threshold:
    """An entry of thresholds.toml: `[check_name]` with relation, threshold and why."""

    relation: str
    threshold: Measured
    why: str = ""


class Thresholds(Mapping[str, Threshold]):
    """`thresholds.toml` of a stage. The harness reads the same file from the judged commit and compares.

    A value may depend on the target: `threshold = {cpu = 0.5, default = 0.8}`; `target` picks it, and a check that has
    neither does not exist there. Every other check in the file must be reported by the gate.
    """

    def __init__(self, entries: dict[str, Threshold]) -> None:
        self._entries = entries

    @classmethod
    def load(cls, path: Path, target: str = "") -> Thresholds:
        return cls.parse(path.read_text(), target, str(path))

    @classmethod
    def parse(cls, text: str, target: str = "", where: str = "thresholds.toml") -> Thresholds:
        """Raises StageError for bad TOML, an unknown relation or a missing threshold."""
        try:
            raw = tomllib.loads(text)
        except tomllib.TOMLDecodeError as e:
            raise StageError(f"not TOML: {e}", where, "repair the file") from e
        entries = {}
        for name, entry in raw.items():
            if not isinstance(entry, dict) or entry.get("relation") not in RELATIONS:
                raise StageError(
                    f"{name}: relation must be one of {', '.join(RELATIONS)}", where, "write [name] relation = ..."
                )
            value = entry.get("threshold")
            if isinstance(value, dict):
                value = value.get(target, value.get("default"))
            if value is None and entry["relation"] != "info":
                if isinstance(entry.get("threshold"), dict):
                    continue
                raise StageError(f"{name}: no threshold", where, "give `threshold`")
            entries[name] = Threshold(entry["relation"], plain(value), str(entry.get("why", "")))
        return cls(entries)

    def check(self, name: str, measured: Any, command: str = "", detail: str = "") -> Check:
        """The check `name` with its relation and threshold from the file. Raises StageError for a name not in it."""
        if name not in self._entries:
            raise StageError(
                f"no threshold for check {name!r}", "thresholds.toml", "add an entry on a pull request of its own"
            )
        entry = self._entries[name]
        return Check.compare(name, measured, entry.relation, entry.threshold, command, detail)

    def __getitem__(self, name: str) -> Threshold:
        return self._entries[name]

    def __iter__(self) -> Any:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


@dataclass(frozen=True)
class Planted:
    """A known-bad subject for a gate (it must turn red) beside a good one (it must stay green).

    Both run the gate's real checking code on a subject made in `ctx.workdir` (small, no checkpoint, seconds).
    `make_bad` may also raise a PlowError: a typed refusal counts as caught. expect: text in the red line or error.
    """

    name: str
    make_bad: Callable[[StageContext], GateReport]
    control: Callable[[StageContext], GateReport]
    expect: str = ""


@dataclass(frozen=True)
class Stage:
    """One stage of a bring-up.

    name: its folder, e.g. "s1_ir". sources: globs (`**` crosses folders) over tracked files that make its evidence
    stale; its own folder and base.py always count. checks: every check name that the gate must report. headline:
    checks shown beside the stage's name. editable: globs that the work of this stage may change. timed: the gate
    measures time, so it waits for the machine lease. Limits are seconds of wall time.
    """

    number: int
    name: str
    title: str
    sources: tuple[str, ...]
    work: Callable[[StageContext, Progress], None]
    gate: Callable[[StageContext], GateReport]
    checks: tuple[str, ...] = ()
    planted: tuple[Planted, ...] | list[Planted] = ()
    headline: tuple[str, ...] = ()
    editable: tuple[str, ...] = ()
    timed: bool = False
    gate_limit_s: float = 900.0
    work_limit_s: float = 1800.0


def resolve_checkpoint(ref: str) -> Path:
    """A local directory for a directory or a hub repository `org/name`. Raises CheckpointError."""
    from plow.checkpoint.hub import resolve

    return resolve(ref)

"""Scripted cheats: each tries to turn a bring-up green without earning it, beside an honest twin that must stay green.

Belongs here: the temporary repository they run in (sandbox.py) and one function a cheat and a control. Does not belong
here: the rules that catch them (harness/guard.py, audit.py, verdict.py, gate.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from harness.cheats.sandbox import Sandbox

Attempt = Callable[[Sandbox], list[str]]
"""Acts in a fresh copy of the sandbox; returns what the harness found, [] for green."""


@dataclass(frozen=True)
class Cheat:
    """bad must be caught with `expect` in a finding; control must find nothing."""

    name: str
    bad: Attempt
    control: Attempt
    expect: str


def catalogue() -> list[Cheat]:
    from harness.cheats import commits, judging, records

    return [*commits.CHEATS, *records.CHEATS, *judging.CHEATS]

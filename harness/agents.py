"""Agent drivers: who does a stage's work. A driver gets a task and returns; it decides nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from harness.errors import AgentError


@dataclass(frozen=True)
class AgentTask:
    """prompt: the rendered prompt file. root: the checkout to work in. editable: globs it may change. gate: the command
    that judges it. limit_s: wall time."""

    stage: int
    prompt: Path
    root: Path
    editable: tuple[str, ...]
    gate: str
    limit_s: float


@dataclass(frozen=True)
class AgentResult:
    """ended: "done", "stuck" or "limit". note: one line for the ledger."""

    ended: str
    note: str = ""


class Agent(Protocol):
    name: str

    def work(self, task: AgentTask) -> AgentResult: ...


class NoAgent:
    """A person or an outside agent edits the tree; the stage's built-in work runs as it is."""

    name = "none"

    def work(self, task: AgentTask) -> AgentResult:
        return AgentResult("done", f"prompt: {task.prompt}")


DRIVERS: dict[str, Callable[[], Agent]] = {"none": NoAgent}


def make_agent(name: str) -> Agent:
    """Raises AgentError for a name without a driver."""
    if name not in DRIVERS:
        raise AgentError(
            f"no agent driver {name!r}",
            "",
            f"known: {', '.join(DRIVERS)}; with none, hand `plow-bringup prompt N` "
            "to any agent and run `plow-bringup resume` after it",
        )
    return DRIVERS[name]()

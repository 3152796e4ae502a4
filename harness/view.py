"""What people see: the stages turning green with what was measured, and tables of status, CI and doctor."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.spinner import Spinner
from rich.table import Table

from harness.ci import CiReport
from harness.doctor import Finding
from harness.state import State, word
from harness.verdict import show
from stages.base import Stage

STYLE = {"green": "green", "red": "bold red", "stale": "yellow", "running": "cyan", "pending": "dim"}
PLAIN_EVERY_S = 10.0


def measured(rows: Sequence[Sequence[Any]]) -> str:
    """ "error 0.00012 <= 0.001, tokens True == True"."""
    return ", ".join(
        f"{name} {show(value)}" + (f" {relation} {show(limit)}" if relation != "info" else "")
        for name, value, relation, limit in rows
    )


def status_table(state: State, stages: Sequence[Stage]) -> Table:
    table = Table(
        "", "stage", "state", "measured / why", title=f"{state.arch} on {state.target}", title_justify="left", box=None
    )
    for stage in stages:
        now = state.stage(stage.number)
        text = measured(now.headline) if now.status == "green" else "; ".join(now.reasons)
        dirty = " (uncommitted)" if now.dirty else ""
        table.add_row(str(stage.number), stage.title, f"[{STYLE[now.status]}]{word(now)}{dirty}[/]", escape(text))
    return table


class Progress:
    """Follows a run. On a terminal the stage list is redrawn in place; elsewhere each event is a line."""

    def __init__(self, console: Console, stages: Sequence[Stage], state: State) -> None:
        self.console, self.stages = console, stages
        self.rows = {s.number: self._row(state, s) for s in stages}
        self.started, self.last_plain = 0.0, 0.0
        self.live = (
            Live(self._table(), console=console, transient=False, refresh_per_second=8) if console.is_terminal else None
        )

    def __enter__(self) -> Progress:
        if self.live:
            self.live.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self.live:
            self.live.update(self._table(), refresh=True)
            self.live.stop()

    def __call__(self, event: str, stage: Stage, details: dict[str, Any]) -> None:
        now = time.monotonic()
        if event == "verdict":
            found = details["verdict"]
            rows = [
                (c["name"], c["measured"], c["relation"], c["threshold"])
                for c in found.checks
                if c["name"] in stage.headline
            ]
            rows = rows or [(c["name"], c["measured"], c["relation"], c["threshold"]) for c in found.checks[:2]]
            text = measured(rows) if found.green else "; ".join(found.reasons)
            self.rows[stage.number] = ("green" if found.green else "red", text, f"{details['seconds']:.1f} s")
            self._plain(f"{stage.number} {stage.title}: {found.word}, {text} ({details['seconds']:.1f} s)")
        elif event == "progress":
            share = f" {details['done']:.0%}" if details.get("done") is not None else ""
            self.rows[stage.number] = ("running", details["text"] + share, "")
            if now - self.last_plain > PLAIN_EVERY_S:
                self._plain(f"{stage.number} {stage.title}: {details['text']}{share}")
        else:
            self.rows[stage.number] = ("running", {"work": "working", "gate": "judging"}.get(event, event), "")
            self._plain(f"{stage.number} {stage.title}: {'working' if event == 'work' else 'judging'}")
        if self.live:
            self.live.update(self._table())

    def _plain(self, line: str) -> None:
        self.last_plain = time.monotonic()
        if not self.live:
            self.console.print(line, markup=False, soft_wrap=True)

    def _row(self, state: State, stage: Stage) -> tuple[str, str, str]:
        now = state.stage(stage.number)
        return (
            now.status,
            measured(now.headline) if now.status == "green" else "",
            f"{now.seconds:.1f} s" if now.seconds else "",
        )

    def _table(self) -> Table:
        table = Table.grid(padding=(0, 1))
        for stage in self.stages:
            status, text, seconds = self.rows[stage.number]
            mark: Any = (
                Spinner("dots")
                if status == "running"
                else {"green": "[green]✔[/]", "red": "[red]✘[/]"}.get(status, "·")
            )
            table.add_row(
                mark, f"[{STYLE[status]}]{stage.number} {escape(stage.title)}[/]", escape(text), f"[dim]{seconds}[/]"
            )
        return table


def ci_table(report: CiReport) -> Table:
    table = Table("what", "verdict", "why", box=None)
    for finding in report.findings:
        colour = "red" if finding.red else "yellow"
        table.add_row(
            f"guard {finding.rule}",
            f"[{colour}]{'red' if finding.red else 'notice'}[/]",
            escape(f"{finding.path} {finding.what}"),
        )
    if not any(f.red for f in report.findings):
        table.add_row("guard", "[green]green[/]", "")
    for result in report.results:
        text = "; ".join(result.reasons) or measured(
            [(c["name"], c["measured"], c["relation"], c["threshold"]) for c in result.checks[:2]]
        )
        table.add_row(
            f"{result.bringup} {result.stage} {result.name}",
            f"[{'green' if result.green else 'red'}]{result.verdict}[/]",
            escape(text),
        )
    for line in report.not_run:
        table.add_row(escape(line), "[dim]not run[/]", "")
    return table


def doctor_table(findings: Sequence[Finding]) -> Table:
    table = Table("tool", "found", "blocks while missing", "fix", box=None)
    for item in findings:
        mark = "green" if item.ok else "red" if item.needed else "yellow"
        table.add_row(
            item.tool, f"[{mark}]{escape(item.found)}[/]", "" if item.ok else item.blocks, "" if item.ok else item.fix
        )
    return table

"""Stage definitions, read through a process of their own.

Importing a stage imports its gate and with it the code under test, which could then reach into the process that
decides. So the harness learns a stage's facts (number, sources, checks, limits) as data; its code runs in
harness.judge only.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from harness.child import run_judge
from harness.errors import BringUpError
from stages.base import GateReport, Progress, Stage, StageContext

LIMIT_S = 120.0


def load(repo: Path) -> list[Stage]:
    """The stages of the checkout, in order. Raises BringUpError when they can not be imported, or there are none."""
    with tempfile.TemporaryDirectory(prefix="plow-stages-") as folder:
        scratch = Path(folder)
        context = StageContext("", "", scratch, scratch, scratch, repo)
        outcome = run_judge(repo, 0, "describe", context, LIMIT_S, scratch / "log.txt")
    result, where = outcome.result or {"error": {"line": outcome.failure}}, str(repo / "stages")
    if "error" in result:
        raise BringUpError(f"the stages can not be loaded: {result['error']['line']}", where, "repair the import")
    stages = [definition(raw) for raw in result["stages"]]
    if not stages:
        raise BringUpError("this checkout has no stages", where, "a stage is a folder stages/sN_name with a STAGE")
    return stages


def definition(raw: dict[str, Any]) -> Stage:
    """A Stage whose work and gate refuse to run here."""
    facts: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in raw.items()}
    return Stage(work=no_work, gate=no_gate, **facts)


def no_work(ctx: StageContext, progress: Progress) -> None:
    raise BringUpError("a stage's work runs in harness.judge only", ctx.arch)


def no_gate(ctx: StageContext) -> GateReport:
    raise BringUpError("a stage's gate runs in harness.judge only", ctx.arch)

"""Work of stage 5: run the block on the device grid and leave the errors of every operator for people and agents."""

from __future__ import annotations

import json
from typing import NoReturn

from stages.base import Progress, StageContext, StageError
from stages.s5_block.gate import Judge
from stages.s5_block.subject import Subject


def work(ctx: StageContext, progress: Progress) -> None:
    """Writes artifacts/block.json: value -> [largest row error, where]."""
    progress("truncate and compile", 0.0)
    judge = Judge(Subject.open(ctx), _unused, _unused)
    progress("batch x context grid", 0.4)
    found = judge.cpu[0]
    ctx.artifacts.mkdir(parents=True, exist_ok=True)
    (ctx.artifacts / "block.json").write_text(json.dumps(found.errors, indent=1))
    error, where = found.worst()
    progress(f"largest error {error:.1e}: {where}", 1.0)


def _unused() -> NoReturn:
    raise StageError("work asks neither the oracle nor the clock", "s5_block")

"""Stage 4, tuning: measure the machine, try the options by paired A/B, keep the winners, hold kernels to ceilings."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from plow.tune import database
from plow.tune.ab import AB, compare
from plow.tune.machine import measure_machine
from stages.arms.plow_arm import command
from stages.arms.protocol import Arm
from stages.base import Progress, Stage, StageContext
from stages.bundles import compile_fresh, require_quiet, tune_database
from stages.s4_tuning.gate import gate
from stages.s4_tuning.planted import PLANTED

TRIALS: tuple[tuple[str, Any, Any], ...] = (
    ("workers", 1, 2),
    ("prefetch_bytes", 8192, 4096),
    ("prefetch_bytes", 8192, 16384),
)
"""(option, baseline, candidate): one lever at a time. A later trial of an option starts from the winner so far."""
STEPS = 24


def work(ctx: StageContext, progress: Progress) -> None:
    """Write artifacts/machine.json (measured ceilings) and artifacts/tune.jsonl (every trial, losers included)."""
    ctx.artifacts.mkdir(parents=True, exist_ok=True)
    require_quiet()
    machine = measure_machine()
    (ctx.artifacts / "machine.json").write_text(json.dumps(machine.to_json(), indent=1))
    path = tune_database(ctx)
    path.unlink(missing_ok=True)
    best: dict[str, Any] = {}
    for i, (option, baseline, candidate) in enumerate(TRIALS):
        if option == "workers" and candidate > machine.workers:
            continue
        base = best.get(option, baseline)
        progress(f"A/B {option}: {base} against {candidate}", i / len(TRIALS))
        result = trial(ctx, option, base, candidate, best)
        won = result.verdict == "win"
        best[option] = candidate if won else base
        database.append(
            path,
            database.Record(
                option,
                candidate,
                base,
                ctx.target,
                machine.name,
                ctx.checkpoint.name,
                result.as_dict(),
                won,
                datetime.now(UTC).isoformat(timespec="seconds"),
                "plow-bringup run --through 4",
            ),
        )


def trial(ctx: StageContext, option: str, base: Any, candidate: Any, best: dict[str, Any]) -> AB:
    """Batch-1 decode of two bundles that differ in one option, each in its own process."""
    found: list[Arm] = []
    for name, value in (("control", base), ("treatment", candidate)):
        bundle = ctx.workdir / f"{option}-{name}"
        build(ctx, bundle, {**best, option: value})
        found.append(Arm(name, command(bundle)))
    prompts = np.random.default_rng(0).integers(100, 1000, (1, 16)).tolist()
    request = {"what": "decode", "prompts": prompts, "steps": STEPS}
    try:
        control, treatment = found
        return compare(lambda: control.timed(request)[0], lambda: treatment.timed(request)[0], rounds=4)
    finally:
        for arm in found:
            arm.close()


def build(ctx: StageContext, out: Path, options: dict[str, Any]) -> None:
    interpreter = {k: v for k, v in options.items() if k != "workers"}
    compile_fresh(ctx, out, rows=(1, 16), workers=options.get("workers", 0), interpreter=interpreter)


STAGE = Stage(
    number=4,
    name="s4_tuning",
    title="Tuning: measured ceilings, measured choices",
    sources=(
        "plow/tiles/**",
        "plow/schedule/**",
        "plow/packet/**",
        "plow/tune/**",
        "plow/hw/**",
        "plow/runtime/*cpu*.py",
        "kernels/**",
        "stages/arms/**",
        "stages/bundles.py",
    ),
    work=work,
    gate=gate,
    checks=(
        "read_gb_s",
        "fp32_gflop_s",
        "hop_ns",
        "demand_covered",
        "memory_share",
        "compute_share",
        "share_possible",
        "ab_complete",
        "winners_read_back",
    ),
    planted=PLANTED,
    headline=("read_gb_s", "memory_share", "compute_share"),
    editable=("plow/tiles/**", "plow/schedule/**", "kernels/**", "tests/**"),
    timed=True,
)

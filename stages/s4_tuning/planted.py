"""Known-bad subjects for the gate of stage 4: measurements and tune records with one fault each."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from plow.hw import Machine
from plow.tune import database
from plow.tune.ab import judge
from stages.base import GateReport, Planted, StageContext, Thresholds
from stages.s4_tuning.demand import Kernel
from stages.s4_tuning.gate import HERE, ceiling_values, kernel_values, record_values

MACHINE = Machine("planted", 2, 50e9, 2e11, 4e11, 1e-7, 1e-8)
MEMORY = Kernel("LINEAR", "STORE", 576, 576, 1, 60, 1.2e-3, 1e-3, 0.83, "memory", 0.6)
COMPUTE = Kernel("LINEAR", "STORE", 576, 576, 512, 60, 1.2e-1, 1e-1, 0.83, "compute", 0.6)


def record(**changes: Any) -> dict[str, Any]:
    """A record of a clear win, as stage 4's work writes it, then changed."""
    result = judge([1.0, 1.0], [1.01, 1.01], [0.8, 0.8], [0.81, 0.81]).as_dict()
    line = database.Record("workers", 2, 1, "cpu", "planted", "tiny", result, True, "2026-11-30", "trial").line()
    return line | changes


def choice(line: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {"workers": {"value": 2, "source": f"tune {line['digest'][:12]}"}}


def subject(
    memory: Kernel = MEMORY,
    compute: Kernel = COMPUTE,
    wanted: int = 2,
    line: dict[str, Any] | None = None,
    choices: dict[str, dict[str, Any]] | None = None,
) -> GateReport:
    thresholds = Thresholds.load(HERE / "thresholds.toml", "cpu")
    line = line or record()
    values = ceiling_values(MACHINE) | kernel_values([memory, compute], wanted)
    values |= record_values([line], choice(line) if choices is None else choices, "cpu")
    return GateReport(4, [thresholds.check(k, v, "plow-bringup self-test --gates") for k, v in values.items()])


def planted(name: str, expect: str, **fault: Any) -> Planted:
    def bad(ctx: StageContext) -> GateReport:
        return subject(**fault)

    return Planted(name, bad, lambda ctx: subject(), expect)


INSIDE_NOISE = judge([1.0, 1.0], [1.2, 1.2], [1.05, 1.05], [1.05, 1.05]).as_dict() | {"verdict": "win"}
PLANTED = (
    planted("a demanded kernel was not measured", "demand_covered", wanted=3),
    planted("a hot kernel far below the read bandwidth", "memory_share", memory=replace(MEMORY, share=0.2)),
    planted("a hot kernel far below the FMA peak", "compute_share", compute=replace(COMPUTE, share=0.2)),
    planted("a kernel faster than the machine", "share_possible", memory=replace(MEMORY, share=40.0)),
    planted("a win inside the noise", "ab_complete", line=record(result=INSIDE_NOISE)),
    planted(
        "a record without a second control",
        "ab_complete",
        line=record(result={k: v for k, v in record()["result"].items() if k != "second_control_s"}),
    ),
    planted(
        "the compiler ignores the winner", "winners_read_back", choices={"workers": {"value": 1, "source": "default"}}
    ),
)

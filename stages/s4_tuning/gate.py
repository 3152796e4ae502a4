"""The gate of stage 4: ceilings, then every hot kernel's share of them, then the tune database and its way back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from plow.hw import Machine
from plow.runtime.bundle import load
from plow.runtime.cpu import CpuBackend
from plow.tune import database
from plow.tune.machine import best_of, measure_machine
from stages.base import GateReport, StageContext, Thresholds
from stages.bundles import compile_fresh, require_quiet, tune_database
from stages.s4_tuning.demand import Kernel, demand, hot, profile

HERE = Path(__file__).parent
ROWS = (1, 8, 512)


def gate(ctx: StageContext) -> GateReport:
    thresholds = Thresholds.load(HERE / "thresholds.toml", ctx.target)
    require_quiet()
    machine = best_of(measure_machine(), measure_machine())
    manifest = compile_fresh(ctx, ctx.workdir / "bundle", rows=ROWS)
    backend = CpuBackend(load(ctx.workdir / "bundle", allow_uncertified=True))
    try:
        programs = backend.bundle.packets.programs
        kernels = [k for i in range(len(programs)) for k in profile(backend, i, machine)]
        wanted = sum(len(demand(p)) for p in programs)
    finally:
        backend.close()
    records = database.read(tune_database(ctx))
    values = (
        ceiling_values(machine)
        | kernel_values(kernels, wanted)
        | record_values(records, manifest["choices"], ctx.target)
    )
    return GateReport(4, [thresholds.check(k, v, "plow-bringup gate 4", detail(k, kernels)) for k, v in values.items()])


def ceiling_values(machine: Machine) -> dict[str, float]:
    return {
        "read_gb_s": machine.read_bytes_per_s / 1e9,
        "fp32_gflop_s": machine.fp32_flops / 1e9,
        "hop_ns": machine.hop_s * 1e9,
    }


def kernel_values(kernels: list[Kernel], wanted: int) -> dict[str, float]:
    """wanted: kernels demanded; a kernel without a measurement keeps demand_covered below 1."""
    measured = [k for k in kernels if k.seconds > 0]
    return {
        "demand_covered": len(measured) / wanted,
        "memory_share": min((k.share for k in hot(kernels, "memory")), default=0.0),
        "compute_share": min((k.share for k in hot(kernels, "compute")), default=0.0),
        "share_possible": max((k.share for k in kernels if hot([k], k.bound)), default=0.0),
    }


def record_values(records: list[dict[str, Any]], choices: dict[str, dict[str, Any]], target: str) -> dict[str, float]:
    """choices: of the manifest of a bundle that was compiled with the database of `records`."""
    decided = {
        r["option"]: (r["value"] if r["won"] else r["baseline"], f"tune {r['digest'][:12]}")
        for r in records
        if r["target"] == target
    }
    back = [
        name for name, (value, source) in decided.items() if choices.get(name) == {"value": value, "source": source}
    ]
    return {
        "ab_complete": sum(complete(r) for r in records) / len(records) if records else 0.0,
        "winners_read_back": len(back) / len(decided) if decided else 0.0,
    }


def complete(record: dict[str, Any]) -> bool:
    """Both arms and a second control are there, and the verdict is the one that they imply."""
    r = record["result"]
    if (
        not {"control_s", "second_control_s", "treatment_s", "noise_s", "rounds", "verdict"} <= r.keys()
        or r["rounds"] < 2
    ):
        return False
    gain = r["control_s"] - r["treatment_s"]
    verdict = "not convictable" if abs(gain) <= r["noise_s"] else "win" if gain > 0 else "loss"
    return verdict == r["verdict"] and record["won"] == (verdict == "win")


def detail(name: str, kernels: list[Kernel]) -> str:
    """Which kernel decides the check."""
    bound = {"memory_share": "memory", "compute_share": "compute"}.get(name)
    if bound is None or not hot(kernels, bound):
        return ""
    k = min(hot(kernels, bound), key=lambda x: x.share)
    return (
        f"{k.opcode}.{k.epilogue} k={k.k} n={k.n} T={k.rows}: {k.seconds * 1e6:.0f} us, floor {k.floor_s * 1e6:.0f} us"
    )

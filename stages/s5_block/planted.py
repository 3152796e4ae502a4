"""Known-bad subjects for the gate of stage 5: a tiny model's bundle with packets that compute something else."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from plow.checkpoint import Checkpoint
from plow.oracle import tiny
from plow.packet.abi import Opcode
from plow.packet.codec import Packet, decode, encode
from plow.packet.container import PacketFile
from stages.base import GateReport, Planted, StageContext
from stages.s1_ir.planted import ReferenceOracle
from stages.s5_block.gate import Judge, judge
from stages.s5_block.probes import as_nop
from stages.s5_block.subject import Subject
from stages.s5_block.timing import Timings

Change = Callable[[Packet], Packet]
CONFIGS = {"llama": tiny.LLAMA, "gemma3": tiny.GEMMA3}
STEADY = Timings(block=150e-6, rest=1e-3, step=5.5e-3, layers=30, floor=120e-6, block_bytes=7e6, read_bytes_per_s=6e10)
"""Times of no real machine: tiny models are all overhead."""


@cache
def _compiled_in(family: str) -> tuple[tempfile.TemporaryDirectory[str], Subject]:
    """The tiny model, compiled once for all subjects; the folder lives as long as the process."""
    folder = tempfile.TemporaryDirectory(prefix="plow-planted-")
    root = Path(folder.name)
    path = tiny.write(root / "tiny", CONFIGS[family], seed=7)
    ctx = StageContext("tiny", "cpu", path, root, root / "none" / "evidence", root, {"seed": 1})
    layers = list(range(CONFIGS[family]["num_hidden_layers"]))
    return folder, Subject.compiled(ctx, path, layers)


def compiled(family: str) -> Subject:
    return _compiled_in(family)[1]


def report(
    ctx: StageContext, family: str = "llama", change: Change = lambda p: p, rows: int = 0, timings: Timings = STEADY
) -> GateReport:
    """The gate's own code; `change` rewrites packets of the programs for `rows` rows (0: of all)."""
    good = compiled(family)
    programs = [
        replace(r, lists=[_changed(x, change) for x in r.lists]) if rows in (0, r.rows) else r
        for r in good.bundle.packets.programs
    ]
    bundle = replace(good.bundle, packets=PacketFile(good.bundle.packets.header, programs))
    oracle = ReferenceOracle(Checkpoint.open(good.path))
    return judge(Judge(replace(good, ctx=ctx, bundle=bundle), lambda: oracle, lambda: timings))


def _changed(packets: np.ndarray, change: Change) -> np.ndarray:
    return encode([change(decode(p)) for p in packets])


def _first(opcode: Opcode, then: Change) -> Change:
    """Only packets of the first node with the opcode change."""
    nodes: list[int] = []

    def change(p: Packet) -> Packet:
        if p.opcode == opcode:
            nodes.append(p.node)
        return then(p) if p.opcode == opcode and p.node == min(nodes) else p

    return change


def _planted(name: str, expect: str, family: str, opcode: Opcode, then: Change, rows: int = 0) -> Planted:
    return Planted(
        name, lambda ctx: report(ctx, family, _first(opcode, then), rows), lambda ctx: report(ctx, family), expect
    )


def _timed(name: str, expect: str, **changes: Any) -> Planted:
    return Planted(name, lambda ctx: report(ctx, timings=replace(STEADY, **changes)), report, expect)


def _imm(**values: float) -> Change:
    return lambda p: replace(p, imms=p.imms | values)


def _dim(**deltas: int) -> Change:
    return lambda p: replace(p, dims=p.dims | {k: p.dims[k] + d for k, d in deltas.items()})


PLANTED = (
    _planted("a packet that does nothing", "operator_error_cpu", "llama", Opcode.ATTENTION, as_nop),
    _planted("another eps in one packet", "operator_error_cpu", "llama", Opcode.QKV, _imm(eps=2e-3)),
    _planted(
        "a sliding window one position short", "operator_error_oracle", "gemma3", Opcode.ATTENTION, _dim(window=-1)
    ),
    _planted("one output unit is left out", "operator_error_numpy", "llama", Opcode.LINEAR, _dim(unit1=-1)),
    _planted(
        "a batch that computes a little differently",
        "rows_not_bit_equal",
        "llama",
        Opcode.QKV,
        _imm(eps=1.01e-5),
        rows=8,
    ),
    _planted(
        "prompts that compute a little differently",
        "chunks_not_bit_equal",
        "llama",
        Opcode.QKV,
        _imm(eps=1.01e-5),
        rows=64,
    ),
    _timed("a block that takes three times its floor", "block_time_over_floor", block=360e-6, step=11.8e-3),
    _timed("a block faster than its bytes", "block_speed_over_ceiling", block=20e-6, step=1.6e-3),
    _timed("blocks that do not add up to the step", "block_reconciliation", step=8e-3),
)

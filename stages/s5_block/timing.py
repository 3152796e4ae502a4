"""How long a block takes in the whole model, packet by packet, beside the least time that its bytes need."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from plow.checkpoint import Checkpoint
from plow.compile import compile_checkpoint, lower
from plow.graph import OPS, Graph
from plow.models import build
from plow.runtime.bundle import load
from plow.runtime.cpu import CpuBackend
from plow.runtime.cpu_lib import LoadedProgram
from plow.runtime.cpu_probe import probe
from plow.runtime.step import StepBatch
from stages.base import StageContext
from stages.s5_block.subject import options_for

START, STEPS, ROUNDS = 32, 32, 12
"""Position of the first timed row, decode steps a run, runs."""


@dataclass(frozen=True)
class Timings:
    """Seconds of a decode step at batch 1. block: median over layers; rest: embedding, head and sampling; step: by a
    clock outside the interpreter; floor: a block's bytes over the measured read bandwidth, or its flops if these take
    longer."""

    block: float
    rest: float
    step: float
    layers: int
    floor: float
    block_bytes: float
    read_bytes_per_s: float

    @property
    def over_floor(self) -> float:
        return self.block / self.floor

    @property
    def unreconciled(self) -> float:
        """|blocks x layers + rest - step| over the step."""
        return abs(self.block * self.layers + self.rest - self.step) / self.step

    def __str__(self) -> str:
        return (
            f"block {self.block * 1e6:.0f} us x {self.layers} + rest {self.rest * 1e6:.0f} us, "
            f"step {self.step * 1e6:.0f} us; floor {self.floor * 1e6:.0f} us = {self.block_bytes / 1e6:.2f} MB "
            f"at {self.read_bytes_per_s / 1e9:.1f} GB/s"
        )


def measure(ctx: StageContext) -> Timings:
    """Compile the whole model for one row and time it: its weights exceed the caches, a truncated one's may not."""
    graph = build(Checkpoint.open(ctx.checkpoint).config)
    options = options_for(ctx, graph, (1,))
    out = ctx.workdir / "whole"
    compile_checkpoint(ctx.checkpoint, out, options)
    fused = lower(graph, options, graph.meta["vocab_size"]).graph
    bundle = load(out, allow_uncertified=True)
    ceilings = probe(bundle.file("interpreter"))
    backend = CpuBackend(bundle)
    try:
        step, scopes = _times(backend, fused)
    finally:
        backend.close()
    layers = [t for scope, t in scopes.items() if scope.startswith("layer.")]
    rest = sum(t for scope, t in scopes.items() if not scope.startswith("layer."))
    moved, flops = block_work(fused)
    floor = max(moved / ceilings["read_bytes_per_s"], flops / ceilings["fp32_flops"])
    return Timings(float(np.median(layers)), rest, step, len(layers), floor, moved, ceilings["read_bytes_per_s"])


def block_work(fused: Graph) -> tuple[float, float]:
    """(bytes, flops) of the median layer in the middle of the timed steps: weights, cache and activations once each."""
    bind = {"T": 1, "S": 1, "C": START + STEPS // 2}
    work = []
    for scope, nodes in fused.scopes():
        if scope.startswith("layer."):
            pairs = [OPS[n.op].work([fused.types[v] if v else None for v in n.inputs], n.attrs, bind) for n in nodes]
            work.append((sum(b for _, b in pairs), sum(f for f, _ in pairs)))
    return sorted(work)[len(work) // 2]


def _times(backend: CpuBackend, fused: Graph) -> tuple[float, dict[str, float]]:
    """(seconds a step by the clock outside, scope -> seconds a step by the packets' own clocks) of the fastest run.

    The fastest run is the one that strangers on the machine disturbed least; both times are of the same run.
    """
    program = backend.programs[0]
    runs = []
    _run(backend)
    for _ in range(ROUNDS):
        program.start_profile()
        step = _run(backend)
        runs.append((step, _by_scope(program, fused)))
        program.stop_profile()
    return min(runs, key=lambda run: run[0])


def _run(backend: CpuBackend) -> float:
    limits = backend.bundle.limits
    table = np.arange(limits.max_slots * limits.blocks_per_seq, dtype=np.int32).reshape(limits.max_slots, -1)
    batch = StepBatch.greedy([1], [START], [0], [0], table)
    start = time.perf_counter()
    backend.run(0, batch, STEPS)
    return (time.perf_counter() - start) / STEPS


def _by_scope(program: LoadedProgram, fused: Graph) -> dict[str, float]:
    """Waiting and executing of a scope's packets, averaged over the workers, whose times run in parallel."""
    total: dict[str, float] = dict.fromkeys((scope for scope, _ in fused.scopes()), 0.0)
    for packets, profile in zip(program.lists, program.profile or [], strict=True):
        for node, waiting, executing, runs in zip(
            packets["node"], profile["waiting"], profile["executing"], profile["runs"], strict=True
        ):
            scope = fused.nodes[node].scope if node < len(fused.nodes) else "head"
            total[scope] += (int(waiting) + int(executing)) / max(int(runs), 1) * 1e-9 / len(program.lists)
    return total

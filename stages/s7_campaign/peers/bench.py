"""The run of `peers.py`: arms are made and checked one after the other, then timed in interleaved rounds."""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

from plow.errors import ConfigError, PlowError
from plow.runtime import bundle as bundles
from plow.runtime.cuda import CudaBackend
from plow.runtime.cuda_device import cupy

from .arm import FAILURES, REPLAYS_OF_A_TRY, Arm, brief, time_steps
from .check import LEAST_LIMIT, SLACK, YARDSTICK_LIMIT, Case, cases_of, compare, reference, run_cases
from .hf import Eager, Static
from .lean import MODE, Lean
from .rows import Measured, Run, row, table
from .shape import Shape, read_shape
from .weights import Weights, draw, random_kv

OURS = "plow"
EAGER = "transformers eager"
ARM_SECONDS = 150
"""What must be left of --seconds when an arm begins to compile: the slowest one, the rounds, our bundle."""
CACHE_STEP = 128
"""Static caches are a multiple of so many positions long."""
Factory = Callable[[Weights, int, int], Arm]
Timer = Callable[[], tuple[float, list[Any]]]


def lean_triton(weights: Weights, batch: int, max_ctx: int) -> Arm:
    from .fused import Fused  # an arm without Triton is invalid; the others need none

    return Fused(weights, batch, max_ctx)


PEERS: dict[str, tuple[str, Factory]] = {
    "eager": (EAGER, Eager),
    "triton": ("lean triton + graph", lean_triton),
    "torch": ("lean torch.compile + graph", Lean),
    "static": ("transformers static + compile + graph", lambda w, b, n: Static(w, b, n, MODE, True)),
    "reduce": ("transformers static + reduce-overhead", lambda w, b, n: Static(w, b, n, "reduce-overhead", False)),
}
"""--arms name -> name in the result, factory. Made in this order: the first is the yardstick of the others' check."""
DEFAULT = f"{OURS},eager,triton,torch,static"


def log(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@dataclass
class Task:
    """What every arm has to do: `steps` greedy tokens of `batch` sequences from position `start` on, after kv."""

    weights: Weights
    batch: int
    start: int
    steps: int
    kv: torch.Tensor
    token: torch.Tensor
    cases: list[Case]

    @classmethod
    def of(cls, shape: Shape, batch: int, ctx: int, steps: int, device: str, scale: float | None = None) -> Task:
        """Mean context `ctx`. Raises ConfigError when so many steps do not fit around it."""
        start = ctx - steps // 2
        if start < 1 or steps < 1 or batch < 1:
            raise ConfigError(f"{steps} steps around position {ctx}", "peers", "raise --context or lower --steps")
        weights = draw(shape, device) if scale is None else draw(shape, device, scale=scale)
        kv = random_kv(shape, batch, start, device)
        token = torch.arange(100, 100 + batch, device=device) % shape.vocab
        return cls(weights, batch, start, steps, kv, token, cases_of(batch, shape.vocab, start, device))

    @property
    def ctx(self) -> int:
        return self.start + self.steps // 2

    @property
    def bytes(self) -> int:
        """What a step must read, on the mean."""
        return self.weights.shape.step_bytes(self.batch, self.ctx)

    @property
    def max_ctx(self) -> int:
        """Length of static caches: what is timed, and what tuning runs ahead."""
        needed = self.start + max(self.steps, REPLAYS_OF_A_TRY) + 8
        return -(-needed // CACHE_STEP) * CACHE_STEP


def judge(arm: Arm, task: Task, wanted: list[torch.Tensor], limit: float, measured: Measured) -> None:
    """Check the arm as it will be timed; writes check and reason."""
    agreement = compare(run_cases(arm, task.cases, task.kv), wanted)
    measured.check, measured.reason = asdict(agreement), agreement.fault(limit)


def make(
    name: str, factory: Factory, task: Task, wanted: list[torch.Tensor], limit: float
) -> tuple[Arm | None, Measured]:
    """An arm that agrees with the reference, or None and the reason."""
    began = time.perf_counter()
    measured = Measured(name, task.bytes)
    arm: Arm | None = None
    try:
        arm = factory(task.weights, task.batch, task.max_ctx)
        arm.fill(task.kv)
        arm.prepare(task.start)
        judge(arm, task, wanted, limit, measured)
        while measured.reason and arm.weaken(task.start):
            log(f"{name}: {measured.reason}; trying it simpler")
            judge(arm, task, wanted, limit, measured)
    except FAILURES as e:
        measured.reason = brief(e)
        log("".join(traceback.format_exc().splitlines(keepends=True)[-30:]))
    measured.note = arm.note if arm else ""
    if measured.reason:
        arm = None
        gc.collect()
    numbers = ", ".join(f"{k} {v:.4f}" for k, v in measured.check.items())
    state = f"INVALID, {measured.reason}" if measured.reason else "ready"
    log(f"{name}: {state}, {time.perf_counter() - began:.0f} s; {numbers}; {measured.note}")
    return arm, measured


def make_all(selected: Sequence[str], task: Task, until: float) -> tuple[dict[str, Timer], dict[str, Measured]]:
    """Timers of the valid peers, and the records of all. The reference is transformers in fp32. until: on the clock
    perf_counter; an arm that would begin to compile later is not made."""
    wanted = reference(task.weights, task.cases, task.kv)
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    timers: dict[str, Timer] = {}
    records: dict[str, Measured] = {}
    limit = YARDSTICK_LIMIT
    for name, factory in (PEERS[key] for key in PEERS if key in selected):
        if time.perf_counter() > until and name != EAGER:
            records[name] = Measured(name, task.bytes, reason="no time was left to compile it; raise --seconds")
            continue
        arm, records[name] = make(name, factory, task, wanted, limit)
        if arm is not None:
            timers[name] = lambda arm=arm: time_steps(arm, task.token, task.start, task.steps)  # type: ignore[misc]
            if name == EAGER:
                limit = max(LEAST_LIMIT, SLACK * records[name].check["rms"])
    return timers, records


class Ours:
    """Our bundle by h200.py's own measurement; h200: that module."""

    def __init__(self, h200: Any, path: Path, task: Task) -> None:
        self.h200, self.batch, self.steps = h200, task.batch, task.steps
        self.ctx, self.bytes = task.ctx, task.bytes
        self.backend = CudaBackend(bundles.load(path, allow_uncertified=True))
        if not any(p.rows >= task.batch for p in self.backend.bundle.packets.programs):
            raise PlowError(f"no program decodes {task.batch} rows", str(path), "compile it with --rows")
        h200.fill_kv(self.backend)

    def time(self) -> tuple[float, list[Any]]:
        """(milliseconds a step, tokens of every step). Raises PlowError when the bundle is another model."""
        torch.cuda.synchronize()
        m = self.h200.measure(self.backend, self.batch, self.ctx, self.steps, 1)
        _ = self.backend.device_arena  # the resident kernel leaves the SMs to the next arm
        if abs(m["bytes"] - self.bytes) > 0.01 * self.bytes:
            raise PlowError(f"a step reads {m['bytes']} bytes, the config says {self.bytes}", "bundle", "not one model")
        return m["rounds_ms"][0], self.backend.last_tokens(self.steps, self.batch).tolist()


def make_ours(h200: Any, path: Path, task: Task) -> tuple[Ours | None, Measured]:
    """The bundle, timed once, or None and the reason."""
    measured = Measured(OURS, task.bytes)
    try:
        ours = Ours(h200, path, task)
        ours.time()
    except FAILURES as e:
        measured.reason = brief(e)
        log(f"{traceback.format_exc()}{OURS}: INVALID, {measured.reason}")
        return None, measured
    return ours, measured


def rounds(n: int, timers: dict[str, Timer], records: dict[str, Measured]) -> None:
    """Time every arm once a round, every second round in reverse order. An arm that fails, or whose tokens change from
    round to round, is invalid from then on."""
    texts: dict[str, list[Any]] = {}
    for r in range(n):
        order = list(timers) if r % 2 == 0 else list(timers)[::-1]
        for name in order:
            record = records[name]
            if record.reason:
                continue
            try:
                ms, text = timers[name]()
            except FAILURES as e:
                record.reason = brief(e)
                continue
            record.rounds_ms.append(ms)
            if texts.setdefault(name, text) != text:
                record.reason = "two equal rounds gave different tokens"
        times = ", ".join(f"{k} {m.rounds_ms[-1]:.4f}" for k, m in records.items() if m.rounds_ms)
        log(f"round {r + 1}/{n}: {times} ms")


def arguments(argv: Sequence[str] | None, description: str | None) -> argparse.Namespace:
    p = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("bundle", type=Path)
    p.add_argument("--config", type=Path, required=True, help="config.json of the bundle's model")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--steps", type=int, default=64, help="decode steps of a measurement")
    p.add_argument("--context", type=int, default=512, help="mean context of the steps")
    p.add_argument("--batch", type=int, default=1)
    p.add_argument("--arms", default=DEFAULT, help=f"of {OURS},{','.join(PEERS)}; default {DEFAULT}")
    p.add_argument("--seconds", type=float, default=300, help="what the run may take; arms left out say so")
    p.add_argument("--out", type=Path, help="append the lines to this file")
    a = p.parse_args(argv)
    unknown = set(a.arms.split(",")) - {OURS, *PEERS}
    if unknown:
        p.error(f"no arm {', '.join(sorted(unknown))}")
    return a


def common(a: argparse.Namespace, cp: Any, ceiling: float) -> Run:
    versions = {"torch": torch.__version__, "transformers": transformers.__version__, "cupy": cp.__version__}
    try:
        import triton

        versions["triton"] = triton.__version__
    except ImportError:
        pass
    return Run(
        model=a.bundle.name,
        batch=a.batch,
        ctx=a.context,
        steps=a.steps,
        ceiling=ceiling,
        card=cp.cuda.runtime.getDeviceProperties(0)["name"].decode(),
        driver=cp.cuda.runtime.driverGetVersion(),
        versions=versions,
        command=f"PYTHONPATH=. python3 stages/s7_campaign/peers.py BUNDLE --config CONFIG.json --rounds {a.rounds} "
        f"--steps {a.steps} --context {a.context} --batch {a.batch} --arms {a.arms}",
    )


def main(h200: Any, description: str | None = None, argv: Sequence[str] | None = None) -> None:
    """h200: the module of that name beside `peers.py`, whose ceiling and measurement of our bundle this uses."""
    a = arguments(argv, description)
    selected, began = a.arms.split(","), time.perf_counter()
    shape = read_shape(a.config)
    cp = cupy()
    run = common(a, cp, h200.read_ceiling(cp))
    cp.get_default_memory_pool().free_all_blocks()
    log(f"{run.card}: {run.ceiling / 1e9:.0f} GB/s; {shape}")
    task = Task.of(shape, a.batch, a.context, a.steps, "cuda")
    timers, records = make_all(selected, task, began + a.seconds - ARM_SECONDS)
    if OURS in selected:
        ours, records[OURS] = make_ours(h200, a.bundle, task)
        if ours is not None:
            timers[OURS] = ours.time
            run.versions["nvcc"] = ours.backend.bundle.manifest["interpreter"]["compiler"]
    rounds(a.rounds, timers, records)
    lines = [row(run, m) for m in records.values()]
    for line in lines:
        print(json.dumps(line), flush=True)
        if a.out:
            with a.out.open("a") as f:
                f.write(json.dumps(line) + "\n")
    log(f"{table(lines)}\n{time.perf_counter() - began:.0f} s")

"""The demand list: every distinct hot kernel of a bundle, and its measured share of the machine's ceiling.

A kernel is (opcode, epilogue, input features, output columns or heads, rows). What bounds it is decided by the roofline
of the measured machine; its share is floor time / measured time, where the floor is bytes / read bandwidth or
flops / peak, whichever is longer. Times come from the interpreter's own per-packet profile inside whole steps, so
caches are as cold as in production.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from plow.hw import Machine
from plow.packet.abi import Flag, Opcode
from plow.packet.codec import Packet, decode
from plow.packet.container import ProgramRecord
from plow.runtime.cpu import CpuBackend
from plow.runtime.step import StepBatch
from plow.schedule.simulate import work

HOT_SHARE = 0.03
"""A kernel is hot from this share of its step's busy time on."""
CONTEXT = 64
"""Cached positions while decode is profiled."""
Key = tuple[str, str, int, int]


@dataclass(frozen=True)
class Kernel:
    """One demand. seconds: the slowest worker's time summed over the kernel's packets, best of the repeats; floor_s:
    what the ceilings allow; share: floor_s / seconds; bound: "memory" | "compute"; weight: its part of the step."""

    opcode: str
    epilogue: str
    k: int
    n: int
    rows: int
    packets: int
    seconds: float
    floor_s: float
    share: float
    bound: str
    weight: float

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def key(p: Packet) -> Key:
    """What makes two packets the same kernel, whatever its layer and worker."""
    d = p.dims
    n = d.get("n") or d.get("vocab") or d.get("num_heads", 0) * d.get("head_dim", 1)
    return p.opcode.name, p.epilogue.name, d.get("k", d.get("width", d.get("head_dim", 0))), n


def demand(program: ProgramRecord) -> set[Key]:
    """Every projection and attention kernel of a program; row operators are never a bandwidth demand."""
    packets = (decode(r) for r in program.by_seq())
    return {key(p) for p in packets if p.opcode in (Opcode.LINEAR, Opcode.QKV, Opcode.ATTENTION)}


def batch(backend: CpuBackend, rows: int, samples: int) -> StepBatch:
    """rows <= samples: one decode row a sequence at CONTEXT; else one prompt chunk of `rows` rows."""
    limits = backend.bundle.limits
    pages = np.arange(limits.max_slots * limits.blocks_per_seq, dtype=np.int32).reshape(limits.max_slots, -1)
    tokens = np.random.default_rng(rows).integers(0, limits.vocab_size, rows).tolist()
    if rows <= samples:
        return StepBatch.greedy(tokens, [CONTEXT] * rows, range(rows), range(rows), pages)
    return StepBatch.greedy(tokens, range(rows), [0] * rows, [rows - 1], pages)


def profile(backend: CpuBackend, index: int, machine: Machine, repeats: int = 5) -> list[Kernel]:
    """Profile whole steps of a program; one Kernel a distinct key, hottest first."""
    program = backend.bundle.packets.programs[index]
    step = batch(backend, program.rows, program.samples)
    backend.run(index, step)
    series = [_busy(backend, index, step) for _ in range(repeats)]
    packets = [[decode(r) for r in worker] for worker in program.lists]
    context = CONTEXT if program.rows <= program.samples else program.rows // 2
    times: dict[Key, list[float]] = defaultdict(list)
    for one in series:
        by_worker: dict[Key, np.ndarray] = defaultdict(lambda: np.zeros(len(packets)))
        for w, worker in enumerate(packets):
            for p, seconds in zip(worker, one[w], strict=True):
                by_worker[key(p)][w] += seconds
        for k, v in by_worker.items():
            times[k].append(float(v.max()))
    total = sum(min(v) for v in times.values())
    wanted = demand(program)
    samples = min(program.rows, program.samples) if program.rows <= program.samples else 1
    flat = [p for worker in packets for p in worker]
    kernels = [
        _kernel(
            k,
            [p for p in flat if key(p) == k],
            min(times[k]),
            total,
            program.rows,
            lambda p: work(p, program.rows, samples, context),
            machine,
        )
        for k in wanted
    ]
    return sorted(kernels, key=lambda x: -x.weight)


def _busy(backend: CpuBackend, index: int, step: StepBatch) -> list[np.ndarray]:
    """Seconds executing of every packet in one step, a worker an array."""
    loaded = backend.programs[index]
    profiles = loaded.start_profile()
    backend.run(index, step)
    loaded.stop_profile()
    return [p["executing"] * 1e-9 for p in profiles]


def _kernel(
    k: Key,
    packets: list[Packet],
    seconds: float,
    total: float,
    rows: int,
    cost: Callable[[Packet], tuple[float, float]],
    machine: Machine,
) -> Kernel:
    moved, flops = (sum(x) for x in zip(*(cost(p) for p in packets), strict=True))
    peak = machine.bf16_flops if any(Flag.BF16_DOT in p.flags for p in packets) else machine.fp32_flops
    memory, compute = moved / machine.read_bytes_per_s, flops / peak
    floor = max(memory, compute)
    return Kernel(
        *k,
        rows,
        len(packets),
        seconds,
        floor,
        floor / max(seconds, 1e-12),
        "memory" if memory > compute else "compute",
        seconds / max(total, 1e-12),
    )


def hot(kernels: list[Kernel], bound: str) -> list[Kernel]:
    """Projections that matter for their step. Attention is demanded and reported, but over the few positions of the
    profile its keys and values come from caches, so no memory ceiling judges it."""
    return [x for x in kernels if x.weight >= HOT_SHARE and x.bound == bound and x.opcode != Opcode.ATTENTION.name]

"""Simulation of a program on a machine: when every packet starts and ends, from its bytes, FLOPs and waits.

Each worker has an equal share of bandwidth and peak; a packet takes max(bytes / bandwidth, flops / peak) + packet_s, a
wait for another worker's signal adds hop_s. It predicts the step time and shows where workers idle; it knows nothing
about caches.
"""

from __future__ import annotations

from dataclasses import dataclass

from plow.errors import PacketError
from plow.hw import Machine
from plow.packet.abi import LANES, STEP_COUNTER, UNIT_ROWS, Domain, Epilogue, Flag, Opcode
from plow.packet.codec import Packet, decode
from plow.packet.container import ProgramRecord
from plow.packet.effects import STREAM

ACTIVATION_FLOPS = 8
"""FLOPs charged for one exp or tanh."""


@dataclass(frozen=True)
class Span:
    """One packet on the time line (seconds from the step's start); wait_s: time its worker stood waiting for it."""

    seq: int
    worker: int
    opcode: Opcode
    node: int
    start: float
    end: float
    wait_s: float
    bytes: float
    flops: float


@dataclass(frozen=True)
class Simulation:
    """step_s: end of the last packet; bytes, flops: sums; bound_s: their roofline (no schedule can beat it)."""

    spans: list[Span]
    step_s: float
    bytes: float
    flops: float
    bound_s: float


def simulate(program: ProgramRecord, machine: Machine, context: int, rows: int | None = None) -> Simulation:
    """Run the program with `rows` rows (default: all) at `context` cached positions a sequence.

    Weights of a cache-resident model may be faster than predicted; packets are walked in topological order.
    """
    rows = program.rows if rows is None else rows
    share = 1.0 / len(program.lists)
    free = [0.0] * len(program.lists)
    signalled: dict[int, list[tuple[float, int]]] = {}
    spans: list[Span] = []
    for record in program.by_seq():
        p = decode(record)
        moved, flops = work(p, rows, min(rows, program.samples), context)
        peak = machine.bf16_flops if Flag.BF16_DOT in p.flags else machine.fp32_flops
        start = free[p.worker]
        for counter, _ in p.waits:
            if counter != STEP_COUNTER:
                start = max([start, *(t + (machine.hop_s if w != p.worker else 0.0) for t, w in signalled[counter])])
        end = start + max(moved / (machine.read_bytes_per_s * share), flops / (peak * share)) + machine.packet_s
        for counter in p.signals:
            signalled.setdefault(counter, []).append((end, p.worker))
        spans.append(Span(p.seq, p.worker, p.opcode, p.node, start, end, start - free[p.worker], moved, flops))
        free[p.worker] = end
    moved, flops = sum(s.bytes for s in spans), sum(s.flops for s in spans)
    return Simulation(spans, max(free), moved, flops, max(moved / machine.read_bytes_per_s, flops / machine.fp32_flops))


def work(p: Packet, rows: int, samples: int, context: int) -> tuple[float, float]:
    """(bytes, flops) of a packet. Weights and KV count once a packet, activations of its rows once.
    Raises PacketError for a STREAM packet."""
    if p.opcode == Opcode.NOP:
        return 0.0, 0.0
    if p.opcode in STREAM:
        raise PacketError("waits for published values are not simulated yet", f"packet {p.seq} {p.opcode.name}")
    d = p.dims
    count = samples if p.domain == Domain.SAMPLES else rows
    n = len(range(d["row0"], min(d["row1"], count), d["row_step"]))
    match p.opcode:
        case Opcode.LINEAR:
            units = d["unit1"] - d["unit0"]
            gated = p.epilogue in (Epilogue.GATED_SILU, Epilogue.GATED_GELU_TANH)
            out = units * (LANES if gated else UNIT_ROWS)
            extra = ACTIVATION_FLOPS * n * out if gated else 0
            return units * UNIT_ROWS * d["k"] * 2 + 4 * n * (d["k"] + out), 2.0 * n * units * UNIT_ROWS * d["k"] + extra
        case Opcode.QKV:
            out = (d["head1"] - d["head0"]) * d["head_dim"]
            return out * d["k"] * 2 + 4 * n * (d["k"] + out), 2.0 * n * out * d["k"]
        case Opcode.ATTENTION:
            seen = min(context, d["window"]) if d["window"] else context
            heads, group = d["head1"] - d["head0"], d["num_heads"] // d["num_kv_heads"]
            kv = 8.0 * seen * -(-heads // group) * d["head_dim"]
            # Rows of one sequence share its KV; a step has at most `samples` sequences that read their own.
            return kv * min(n, samples), 4.0 * n * heads * d["head_dim"] * seen
        case Opcode.EMBED:
            return 6.0 * n * d["width"], float(n * d["width"])
        case Opcode.SAMPLE:
            return 4.0 * n * d["vocab"], float(n * d["vocab"])
        case Opcode.ROPE:
            width = d["num_heads"] * d["head_dim"]
        case Opcode.KV_APPEND:
            width = 2 * d["num_kv_heads"] * d["head_dim"]
        case _:
            width = d["width"]
    return 12.0 * n * width, float(ACTIVATION_FLOPS * n * width)

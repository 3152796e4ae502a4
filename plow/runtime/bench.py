"""Speed of a bundle on this machine: decode at batch 1 and 8 and a long prompt, in interleaved rounds.

One measurement of each kind a round, so that a machine which changes its mode changes all of them; every round says
which mode it saw. Everything goes through the engine, as a server's requests do.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from plow.errors import RequestError
from plow.packet.abi import STREAM_TILE, UNIT_ROWS, Opcode
from plow.packet.codec import decode
from plow.packet.container import ProgramRecord
from plow.runtime.cpu_probe import probe
from plow.runtime.engine import Engine
from plow.runtime.llm import LLM
from plow.runtime.request import Request

CONTEXT = 32
"""Prompt tokens in front of a decode measurement."""
STEPS_PER_CALL = 8
PROBE_REPEATS = 2
FAR_HOP_S = 100e-9
"""One-way counter hops on a two-core virtual machine: 34..48 ns near, 180 ns far (30 Nov 2026, Zen 5 host)."""
Log = Callable[[str], None]


def run_bench(llm: LLM, rounds: int, tokens: int, prompt_tokens: int, log: Log = lambda line: None) -> dict[str, Any]:
    """Report with schema plowrt.bench/1; rates in tokens a second. Raises RequestError when the bundle's context or
    slots are too small for what is asked."""
    limits = llm.engine.limits
    longest = max(CONTEXT + tokens, prompt_tokens + 1)
    if longest > limits.max_ctx:
        raise RequestError(f"{longest} positions exceed the context of {limits.max_ctx}", "bench",
                           "lower --tokens or --prompt-tokens")
    batches = sorted({1, min(8, limits.max_slots)})
    kinds: dict[str, Callable[[], float]] = {f"decode_{b}": _decode(llm, b, tokens) for b in batches}
    kinds[f"prompt_{prompt_tokens}"] = lambda: prompt_rate(llm, prompt_tokens)
    for measure in kinds.values():
        measure()  # first touch of pages, and of the processor's clock
    found: dict[str, list[float]] = {k: [] for k in kinds}
    probes = []
    for r in range(rounds):
        probes.append(probe(llm.bundle.file("interpreter"), repeats=PROBE_REPEATS))
        for name, measure in kinds.items():
            found[name].append(measure())
        log(f"round {r + 1}/{rounds}: " + ", ".join(f"{k} {v[-1]:.0f} tok/s" for k, v in found.items()))
    return _report(llm, found, probes)


def machine_mode(hop_s: float) -> str:
    """"near" or "far": whether the two cores share a last-level cache, from the time of a counter hop."""
    return "one core" if hop_s == 0 else "near" if hop_s < FAR_HOP_S else "far"


def _report(llm: LLM, found: dict[str, list[float]], probes: list[dict[str, float]]) -> dict[str, Any]:
    read = weight_bytes(min(llm.bundle.packets.programs, key=lambda p: p.rows))
    bandwidth = [p["read_bytes_per_s"] for p in probes]
    shares = [rate * read / b for rate, b in zip(found["decode_1"], bandwidth, strict=True)]
    bundle = {"path": str(llm.bundle.path), "certified": llm.bundle.certified,
              "packets_sha256": llm.bundle.packet_digest}
    measurements = {k: {"unit": "tok/s", "median": statistics.median(v), "min": min(v), "max": max(v), "rounds": v}
                    for k, v in found.items()}
    return {"schema": "plowrt.bench/1", "bundle": bundle, "measurements": measurements,
            "weight_bytes_per_step": read, "weight_bytes_per_s": read * statistics.median(found["decode_1"]),
            "machine_read_bytes_per_s": bandwidth, "read_share": statistics.median(shares),
            "modes": [machine_mode(p["hop_s"]) for p in probes], "probes": probes}


def _decode(llm: LLM, batch: int, tokens: int) -> Callable[[], float]:
    return lambda: decode_rate(llm, batch, tokens)


def decode_rate(llm: LLM, batch: int, tokens: int) -> float:
    """Tokens a second of `batch` sequences together, from the step after the last prompt to the end."""
    engine = Engine(llm.backend, steps_per_call=STEPS_PER_CALL)
    rng = np.random.default_rng(batch)
    for _ in range(batch):
        engine.add(Request(rng.integers(0, engine.limits.vocab_size, CONTEXT).tolist(), max_tokens=tokens))
    produced = 0
    while produced < batch:
        produced += len(engine.step())
    start, made = time.perf_counter(), 0
    while engine.has_work:
        made += len(engine.step())
    return made / (time.perf_counter() - start)


def prompt_rate(llm: LLM, tokens: int) -> float:
    """Prompt tokens a second until the first token of the answer."""
    engine = Engine(llm.backend)
    prompt = np.random.default_rng(tokens).integers(0, engine.limits.vocab_size, tokens).tolist()
    start = time.perf_counter()
    engine.add(Request(prompt, max_tokens=1))
    while engine.has_work:
        engine.step()
    return tokens / (time.perf_counter() - start)


def weight_bytes(program: ProgramRecord) -> int:
    """Bytes of weights that one step of a program streams (projections; gathered rows and tables are small)."""
    streams = (Opcode.STREAM_LINEAR, Opcode.STREAM_HEAD)
    total = 0
    for packets in program.lists:
        for p in map(decode, packets):
            d = p.dims
            if p.opcode == Opcode.LINEAR:
                total += (d["unit1"] - d["unit0"]) * UNIT_ROWS * d["k"] * 2
            elif p.opcode == Opcode.QKV:
                total += (d["head1"] - d["head0"]) * d["head_dim"] * d["k"] * 2
            elif p.opcode in streams:
                total += (d["tile1"] - d["tile0"]) * STREAM_TILE * d["k"] * 2
    return total

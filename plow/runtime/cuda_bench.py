"""Speed of a bundle on a GPU: decode at batch 1 and 8, in the kernel and through the engine, in interleaved rounds.

Both measurements of a round continue the same sequences from the same context, whose keys and values are real: what
lies between them is the host.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from plow.errors import RequestError
from plow.packet.abi import Opcode
from plow.packet.codec import decode
from plow.packet.container import ProgramRecord
from plow.runtime.bench import Log, weight_bytes
from plow.runtime.cuda import CudaBackend
from plow.runtime.engine import Engine
from plow.runtime.kv import BlockManager
from plow.runtime.llm import LLM
from plow.runtime.request import Request
from plow.runtime.step import StepBatch

BATCHES = (1, 8)


@dataclass(frozen=True)
class _Case:
    """`batch` sequences of `context` positions each. prompts: i64 [batch, context]; program: index of the one that
    decodes them."""

    batch: int
    context: int
    prompts: np.ndarray
    program: int


def run_cuda_bench(llm: LLM, rounds: int, tokens: int, context: int, log: Log = lambda line: None) -> dict[str, Any]:
    """Report with schema plowrt.bench_cuda/1: of each batch the median milliseconds of a step in the kernel and through
    the engine, its tokens a second there, the bytes that a step reads and the bandwidth that the kernel makes of them.

    tokens: decoded of a measurement; context: positions before it. Raises RequestError when the bundle is too small."""
    limits, backend = llm.bundle.limits, llm.backend
    if not isinstance(backend, CudaBackend):
        raise RequestError("only the cuda backend times steps on the device", "bench", "use --backend cuda")
    if context + tokens > limits.max_ctx:
        raise RequestError(f"{context} + {tokens} positions do not fit the context of {limits.max_ctx}", "bench",
                           "change --tokens or --prompt-tokens")  # fmt: skip
    cases = [case(llm, b, context) for b in sorted({min(b, limits.max_slots, limits.max_samples) for b in BATCHES})]
    kernel: dict[int, list[float]] = {c.batch: [] for c in cases}
    engine: dict[int, list[float]] = {c.batch: [] for c in cases}
    for c in cases:
        prefill(backend, c, tokens)
        engine_ms(backend, c, tokens)  # clocks, and programs on the device
    for r in range(rounds):
        for c in cases:
            batch = prefill(backend, c, tokens)
            kernel[c.batch].append(backend.time_steps(c.program, batch, tokens))
            engine[c.batch].append(engine_ms(backend, c, tokens))
        log(f"round {r + 1}/{rounds}: " + ", ".join(
            f"batch {b} {ms[-1]:.4f} ms in the kernel, {engine[b][-1]:.4f} through the engine"
            for b, ms in kernel.items()))  # fmt: skip
    bundle = {
        "path": str(llm.bundle.path),
        "certified": llm.bundle.certified,
        "synthetic": llm.bundle.synthetic,
        "packets_sha256": llm.bundle.packet_digest,
    }
    return {
        "schema": "plowrt.bench_cuda/1",
        "bundle": bundle,
        "context": context,
        "tokens": tokens,
        "decode": [_row(llm, c, tokens, kernel[c.batch], engine[c.batch]) for c in cases],
    }


def _row(llm: LLM, c: _Case, tokens: int, kernel: list[float], engine: list[float]) -> dict[str, Any]:
    record = llm.bundle.packets.programs[c.program]
    size = weight_bytes(record) + kv_bytes(record, c.batch, c.context + tokens // 2)
    ms_kernel, ms_engine = statistics.median(kernel), statistics.median(engine)
    return {
        "batch": c.batch,
        "ms_kernel": ms_kernel,
        "ms_engine": ms_engine,
        "tok_s": c.batch / ms_engine * 1e3,
        "bytes": size,
        "gb_s": size / ms_kernel / 1e6,
        "rounds": {"ms_kernel": kernel, "ms_engine": engine},
    }


def case(llm: LLM, batch: int, context: int) -> _Case:
    rng = np.random.default_rng(batch)
    prompts = rng.integers(0, llm.bundle.limits.vocab_size, (batch, context))
    return _Case(batch, context, prompts, _smallest(llm.bundle.packets.programs, batch))


def _smallest(programs: list[ProgramRecord], rows: int) -> int:
    """The program that the engine takes for `rows` decode rows. Raises RequestError when there is none."""
    fitting = [(p.rows, p.samples, i) for i, p in enumerate(programs) if min(p.rows, p.samples) >= rows]
    if not fitting:
        raise RequestError(f"no program decodes {rows} rows", "bench", "compile the bundle with more row buckets")
    return min(fitting)[2]


def prefill(backend: CudaBackend, c: _Case, tokens: int) -> StepBatch:
    """Compute all but the last prompt token of every sequence, in the places that a new engine gives them; returns the
    batch that decodes on. Not the engine's work: a prompt behind decoding sequences would let those run far ahead."""
    kv = BlockManager(backend.bundle.limits)
    programs, slots = backend.bundle.packets.programs, []
    widest = max(range(len(programs)), key=lambda i: programs[i].rows)
    for prompt in c.prompts:
        slots.append(kv.allocate(c.context + tokens))
        for at in range(0, c.context - 1, programs[widest].rows):
            end = min(at + programs[widest].rows, c.context - 1)
            batch = StepBatch.greedy(prompt[at:end], range(at, end), [slots[-1]] * (end - at), [], kv.page_table)
            backend.run(widest, batch)
    last = [c.context - 1] * c.batch
    return StepBatch.greedy(c.prompts[:, -1], last, slots, range(c.batch), kv.page_table)


class _Resuming(Engine):
    """An engine that takes over sequences whose prompts are computed."""

    def resume(self, computed: int) -> None:
        """Admit what waits; `computed` positions of each sequence are in the KV blocks of a new BlockManager."""
        self._admit()
        for seq in self._running:
            seq.computed = computed


def engine_ms(backend: CudaBackend, c: _Case, tokens: int) -> float:
    """Milliseconds a step through the engine, of sequences whose prompts `prefill` has computed."""
    engine = _Resuming(backend)
    for prompt in c.prompts:
        engine.add(Request(prompt.tolist(), max_tokens=tokens))
    engine.resume(c.context - 1)
    start, made = time.perf_counter(), 0
    while engine.has_work:
        made += len(engine.step())
    if made != c.batch * tokens:
        raise RequestError(f"{made} tokens came, {c.batch * tokens} were asked for", "bench", "report this")
    return (time.perf_counter() - start) * 1e3 / tokens


def kv_bytes(program: ProgramRecord, rows: int, context: int) -> int:
    """Bytes of keys and values (bf16) that `rows` rows with `context` positions before them read in one step."""
    total = 0
    for packets in program.lists:
        for p in map(decode, packets):
            d = p.dims
            if p.opcode == Opcode.STREAM_ATTENTION and d["split"] == 0 and d["row"] < rows:
                total += 2 * 2 * d["head_dim"] * (min(context, d["window"]) if d["window"] else context)
    return total

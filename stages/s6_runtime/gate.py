"""The gate of stage 6: a real server in its own process, real clients, at the declared concurrency."""

from __future__ import annotations

import asyncio
import statistics
import time
from pathlib import Path
from typing import Any

from plow.packet import container
from plow.serve.process import http_json, serving
from stages.base import GateReport, StageContext, Thresholds
from stages.bundles import compile_fresh
from stages.s6_runtime import load

HERE = Path(__file__).parent
CONCURRENCY = 4
MAX_TOKENS = 32
DISCONNECTS = 10
SETTLE_S = 10.0
PROMPTS = (
    "The capital of France is",
    "Once upon a time, in a small village by the sea,",
    "Water boils at a temperature of",
    "The first law of motion says",
    "In the morning the baker",
    "A compiler is a program that",
    "The moon orbits",
    "My favourite food is",
)


def bodies(prompts: tuple[str, ...] = PROMPTS, max_tokens: int = MAX_TOKENS) -> list[dict[str, Any]]:
    """Greedy completions that may not end early, so that every request does the declared work."""
    return [{"prompt": p, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True} for p in prompts]


def gate(ctx: StageContext) -> GateReport:
    thresholds = Thresholds.load(HERE / "thresholds.toml", ctx.target)
    bundle = ctx.workdir / "bundle"
    compile_fresh(ctx, bundle, certified=True)
    with serving(bundle) as base:
        values = measure(base, bundle)
    return GateReport(6, [thresholds.check(k, v, "plow-bringup gate 6") for k, v in values.items()])


def measure(base: str, bundle: Path) -> dict[str, Any]:
    """Every value of the gate from a running server of the bundle."""
    health = http_json(f"{base}/health")
    wanted = bodies()
    warm = asyncio.run(load.together(base, wanted[:1], 1))
    batch = asyncio.run(load.together(base, wanted, CONCURRENCY))
    single = [asyncio.run(load.alone(base, b)) for b in wanted[:3]]
    asyncio.run(load.disconnect(base, {**wanted[1], "max_tokens": 512}, DISCONNECTS))
    left = blocks_after(base)
    predicted = container.load(bundle / "model.pkt").header["arena"]["bytes"]
    return {
        "certified": bool(health["certified"]),
        "requests_complete": complete(batch, MAX_TOKENS) and complete(warm, MAX_TOKENS),
        "ttft_p50_s": statistics.median(r.ttft for r in batch),
        "tpot_p50_s": statistics.median(r.tpot for r in batch),
        "streaming_equals_whole": all(a.text == b.text for a, b in single),
        "alone_equals_in_batch": all(b.text == batch[i].text for i, (_, b) in enumerate(single)),
        "blocks_left_after_disconnects": left,
        "memory_over_prediction": http_json(f"{base}/health")["memory"]["arena_bytes"] / predicted,
        "process_over_prediction": http_json(f"{base}/health")["memory"]["resident_bytes"]
        / (predicted + RUNTIME_BYTES),
    }


RUNTIME_BYTES = 300e6
"""Python, numpy, tokenizer and server beside the arena; an upper bound, as untouched KV pages are not resident."""


def complete(replies: list[load.Reply], tokens: int) -> bool:
    """No shed, truncated or aborted request may count as fast."""
    return all(r.finish == "length" and r.tokens == tokens and r.text for r in replies)


def blocks_after(base: str) -> int:
    """KV blocks in use once the server has noticed that every client is gone (at most SETTLE_S)."""
    deadline = time.monotonic() + SETTLE_S
    while True:
        used = http_json(f"{base}/health")["load"]["used_blocks"]
        if used == 0 or time.monotonic() > deadline:
            return int(used)
        time.sleep(0.1)

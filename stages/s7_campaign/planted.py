"""Known-bad subjects for the gate of stage 7: campaign records and backends with one fault each."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from plow.runtime.step import StepBatch
from stages.base import GateReport, Planted, StageContext, Thresholds
from stages.s7_campaign.battery import Battery, Driver, batch_equal, chunk_equal
from stages.s7_campaign.gate import HERE, battery_values, judge_speed

WEIGHT_BYTES = 100_000_000
BANDWIDTH = 50e9
VOCAB = 64


class FormulaBackend:
    """A backend whose logits are a hash of the sequence so far; `fault` makes them depend on what they must not."""

    def __init__(self, fault: str) -> None:
        self.fault = fault
        limits = SimpleNamespace(max_slots=4, blocks_per_seq=2, max_samples=4)
        programs = [SimpleNamespace(rows=r) for r in (1, 4, 16)]
        self.bundle: Any = SimpleNamespace(limits=limits, packets=SimpleNamespace(programs=programs))
        self.state: dict[tuple[int, int], int] = {}

    def run(self, program: int, batch: StepBatch, n_steps: int = 1) -> np.ndarray:
        hashes = []
        for token, position, slot in zip(batch.tokens, batch.positions, batch.slots, strict=True):
            before = self.state.get((int(slot), int(position) - 1), 7)
            extra = batch.n_rows if self.fault == "batch" and batch.n_samples > 1 else 0
            extra += batch.n_rows if self.fault == "chunk" and batch.n_rows > 1 else 0
            self.state[int(slot), int(position)] = (before * 31 + int(token) + extra) % 1_000_003
            hashes.append(self.state[int(slot), int(position)])
        self.last = np.stack([np.random.default_rng(hashes[i]).normal(size=VOCAB) for i in batch.sample_rows]).astype(
            np.float32
        )
        return self.last.argmax(1)[None].astype(np.int32)

    def logits(self, program: int, n_samples: int) -> np.ndarray:
        return self.last

    def close(self) -> None:
        pass


def records(plow: float, peer: float, agree: float) -> list[dict[str, Any]]:
    """Campaign rounds with the given batch-1 speeds (tokens/s)."""
    mode = {"read_bytes_per_s": BANDWIDTH}
    return [
        {
            "round": r,
            "workload": w,
            "tok_s": {"plow": plow, "transformers_float32": peer},
            "mode": mode,
            "agree": {"plow": agree},
        }
        for r in range(2)
        for w in ("decode_1", "prompt_512")
    ]


def subject(
    plow: float = 400.0, peer: float = 40.0, agree: float = 1.0, fault: str = "", **battery: float
) -> GateReport:
    """The gate's own judgement of a campaign and a battery. 400 tokens/s is 0.8 of the bandwidth."""
    thresholds = Thresholds.load(HERE / "thresholds.toml", "cpu")
    d = Driver(FormulaBackend(fault))  # type: ignore[arg-type]
    prompts = [[1, 2, 3, 4, 5], [9, 8, 7]]
    good = {
        "equal_tokens": 1.0,
        "logit_error": 1e-4,
        "kl": 1e-9,
        "kl_hf_bf16": 1e-3,
        "nll_error": 1e-6,
        "nll_hf_bf16": 1e-2,
    }
    result = Battery(**(good | battery), batch_equal=batch_equal(d, prompts), chunk_equal=chunk_equal(d, prompts[0]))
    values = battery_values(result) | {"compile_seconds": 5.0} | judge_speed(records(plow, peer, agree), WEIGHT_BYTES)
    return GateReport(7, [thresholds.check(k, v, "plow-bringup self-test --gates") for k, v in values.items()])


def planted(name: str, expect: str, **fault: Any) -> Planted:
    def bad(ctx: StageContext) -> GateReport:
        return subject(**fault)

    return Planted(name, bad, lambda ctx: subject(), expect)


PLANTED = (
    planted("interpreter replaced by a no-op is faster than memory", "not_faster_than_memory", plow=40_000.0),
    planted("timed calls return other tokens", "timed_tokens_agree", agree=0.2),
    planted("slower than transformers", "decode_over_transformers_fp32", peer=390.0),
    planted("logits depend on batch mates", "batch_rows_bit_equal", fault="batch"),
    planted("logits depend on how the prompt was cut", "prompt_chunks_bit_equal", fault="chunk"),
    planted("one greedy token differs", "equal_tokens", equal_tokens=0.99),
    planted("NaN in the logits", "logit_error", logit_error=float("nan")),
    planted("lower precision than bf16", "kl_over_hf_bf16", kl=1e-2),
)

"""Counters and latencies of an engine."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from plow.runtime.request import Finish, Timing

WINDOW = 1024
"""Finished requests that the latency percentiles cover."""


@dataclass
class Metrics:
    steps: int = 0
    rows: int = 0
    """Rows computed: prompt and decode."""
    prompt_tokens: int = 0
    generated_tokens: int = 0
    finished: dict[Finish, int] = field(default_factory=lambda: {"stop": 0, "length": 0, "abort": 0})
    ttft: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))
    tpot: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))

    def record(self, timing: Timing, finish: Finish) -> None:
        """Account for a finished request; aborted ones count, but never as fast."""
        self.finished[finish] += 1
        if finish == "abort":
            return
        self.ttft.append(timing.ttft)
        if timing.tokens > 1:
            self.tpot.append(timing.tpot)

    def snapshot(self) -> dict[str, Any]:
        """Plain numbers for JSON; latencies in seconds over the last `WINDOW` requests, None before the first."""
        return {"steps": self.steps, "rows": self.rows, "prompt_tokens": self.prompt_tokens,
                "generated_tokens": self.generated_tokens, "finished": dict(self.finished),
                "ttft_s": percentiles(self.ttft), "tpot_s": percentiles(self.tpot)}


def percentiles(values: deque[float]) -> dict[str, float] | None:
    data = list(values)
    if not data:
        return None
    p50, p90, p99 = np.percentile(data, [50, 90, 99])
    return {"p50": float(p50), "p90": float(p90), "p99": float(p99)}

"""What the host writes for the kernel (kernels/cuda/params.h): Params of a launch, and a Job for every call."""

from __future__ import annotations

import numpy as np

from plow.packet.abi import STREAM_COLUMNS
from plow.runtime.step import StepBatch

POINTERS = ("posted", "jobs", "board", "report", "counters", "diag", "trace")
PARAMS = np.dtype(
    [(name, "<u8") for name in POINTERS]
    + [(name, "<u4") for name in ("workers", "first_job", "launch", "idle_us", "flags", "inflight")]
)
ROWS = (STREAM_COLUMNS,)
JOB_WORDS = 128
JOB = np.dtype(
    [(name, "<u4") for name in ("n_steps", "n_rows", "step_base", "parity")]
    + [(name, "<u8") for name in ("arena", "packets", "counts", "page_table")]
    + [(name, "<u4") for name in ("published", "max_packets", "blocks_per_seq", "sampled")]
    + [(name, "<u4", ROWS) for name in ("positions", "slots", "tokens")]
    + [("sample_index", "<i4", ROWS), ("temperature", "<f4", ROWS), ("top_k", "<u4", ROWS)]
    + [("top_p", "<f4", ROWS), ("min_p", "<f4", ROWS), ("seed", "<u8", ROWS)]
    + [("out_tokens", "<u8"), ("unused", "<u4", (29,)), ("number", "<u4")]
)
JOB_RING = 8
REPORT_FINISHED, REPORT_LEFT, REPORT_LEAVE = range(3)
REPORT_WORDS = 8
COUNTER_WORDS = 32
"""Counters lie apart, each in a cache line of its own."""


def rows_of(job: np.ndarray, batch: StepBatch) -> None:
    """Fill the row fields of a job from a batch; sampling parameters go to the rows that are sampled."""
    job["n_rows"] = batch.n_rows
    for name in ("tokens", "positions", "slots"):
        job[name][: batch.n_rows] = getattr(batch, name)
    job["sample_index"] = -1
    job["sample_index"][batch.sample_rows] = np.arange(batch.n_samples)
    for name in ("temperature", "top_k", "top_p", "min_p", "seed"):
        job[name][batch.sample_rows] = getattr(batch, name)
    sampled = batch.sample_rows[batch.temperature > 0]
    job["sampled"] = int((1 << sampled.astype(np.uint32)).sum())

"""Decode speed of bundles on the GPU, beside the read ceiling of the same card in the same run.

    python -m stages.s7_campaign.h200 BUNDLE... [--batch 1,8] [--ctx 512] [--steps 200] [--out FILE]

A line a bundle and batch: milliseconds a step (median over rounds of one launch of `steps` steps between two events;
positions advance, ctx is their mean), bytes (weights, and keys and values at ctx), and their share of the ceiling.
KV pages hold random numbers. Every timed launch is checked: its tokens must equal those of a second launch.
"""

from __future__ import annotations

import argparse
import json
import statistics
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from plow.errors import PlowError
from plow.packet.abi import KV_BLOCK
from plow.runtime import bundle as bundles
from plow.runtime.bench import weight_bytes
from plow.runtime.cuda import CudaBackend
from plow.runtime.cuda_bench import kv_bytes
from plow.runtime.kv import BlockManager
from plow.runtime.step import StepBatch

CHUNK = 64 << 20
CEILING_BYTES = 4 << 30
CEILING_SOURCE = r"""
extern "C" __global__ void __launch_bounds__(512) read(const uint4* p, unsigned long long n, unsigned* out) {
  unsigned s = 0;
  const unsigned long long step = (unsigned long long)gridDim.x * 512;
  for (unsigned long long i = blockIdx.x * 512ull + threadIdx.x; i < n; i += 8 * step) {
    uint4 v[8];
#pragma unroll
    for (int j = 0; j < 8; j++) v[j] = i + j * step < n ? __ldcs(p + i + j * step) : make_uint4(0, 0, 0, 0);
#pragma unroll
    for (int j = 0; j < 8; j++) s ^= v[j].x ^ v[j].y ^ v[j].z ^ v[j].w;
  }
  if (s == 0x12345) *out = s;
}
"""


def read_ceiling(cp: Any) -> float:
    """Bytes a second of a streaming read of 4 GiB, best of 10."""
    kernel = cp.RawKernel(CEILING_SOURCE, "read")
    data, out = cp.random.randint(0, 1 << 30, CEILING_BYTES // 4, cp.int32), cp.zeros(1, cp.uint32)
    times = []
    for _ in range(10):
        a, b = cp.cuda.Event(), cp.cuda.Event()
        a.record()
        kernel((264,), (512,), (data, np.uint64(CEILING_BYTES // 16), out))
        b.record()
        b.synchronize()
        times.append(cp.cuda.get_elapsed_time(a, b) / 1e3)
    return CEILING_BYTES / min(times)


def fill_kv(backend: CudaBackend) -> None:
    """Random bf16 keys and values: never zeros."""
    cp = backend.cp
    random = cp.random.RandomState(1)
    start, size = backend.bundle.segments["kv"]
    for at in range(start, start + size, CHUNK):
        n = min(CHUNK, start + size - at) // 2
        bits = random.standard_normal(n, cp.float32).view(cp.uint32) >> 16
        backend.device_arena[at : at + 2 * n] = bits.astype(cp.uint16).view(cp.uint8)


def measure(backend: CudaBackend, rows: int, ctx: int, steps: int, rounds: int) -> dict[str, Any]:
    """One line of the result. Raises PlowError when a timed launch is not repeatable."""
    programs = backend.bundle.packets.programs
    index = next(i for i, p in enumerate(programs) if p.rows >= rows)
    limits = backend.bundle.limits
    kv = BlockManager(limits)
    start = ctx - steps // 2
    slots = [kv.allocate(min(start + steps + KV_BLOCK, limits.max_ctx)) for _ in range(rows)]
    tokens = list(range(100, 100 + rows))
    batch = StepBatch.greedy(tokens, [start] * rows, slots, list(range(rows)), kv.page_table)
    times, texts = [], []
    for _ in range(rounds):
        times.append(backend.time_steps(index, batch, steps))
        texts.append(backend.last_tokens(steps, rows))
    if any(not np.array_equal(texts[0], t) for t in texts):
        raise PlowError("two equal launches gave different tokens", str(backend.bundle.path), "do not trust its times")
    ms = statistics.median(times)
    moved = weight_bytes(programs[index]) + kv_bytes(programs[index], rows, ctx)
    return {
        "batch": rows,
        "ctx": ctx,
        "ms": round(ms, 4),
        "rounds_ms": [round(t, 4) for t in times],
        "bytes": moved,
        "n": rounds * steps,
    }


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("bundles", nargs="+", type=Path)
    p.add_argument("--batch", default="1,8")
    p.add_argument("--ctx", type=int, default=512)
    p.add_argument("--steps", type=int, default=200)
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--out", type=Path)
    a = p.parse_args()
    ceiling = 0.0
    for path in a.bundles:
        backend = CudaBackend(bundles.load(path, allow_uncertified=True))
        cp = backend.cp
        ceiling = ceiling or read_ceiling(cp)
        fill_kv(backend)
        for rows in map(int, a.batch.split(",")):
            m = measure(backend, rows, a.ctx, a.steps, a.rounds)
            line = {
                "schema": "plow.decode/1",
                "arm": "plow",
                "model": path.name,
                **m,
                "ceiling_gbs": round(ceiling / 1e9),
                "pct_of_ceiling": round(m["bytes"] / m["ms"] / 1e-3 / ceiling * 100, 1),
                "date": datetime.now(UTC).isoformat(timespec="seconds"),
                "card": cp.cuda.runtime.getDeviceProperties(0)["name"].decode(),
                "driver": cp.cuda.runtime.driverGetVersion(),
                "versions": {"cupy": cp.__version__, "nvcc": backend.bundle.manifest["interpreter"]["compiler"]},
                "command": f"python -m stages.s7_campaign.h200 BUNDLE --batch {rows} --ctx {a.ctx} --steps {a.steps}",
                "valid": True,
            }
            print(json.dumps(line), flush=True)
            if a.out:
                with a.out.open("a") as f:
                    f.write(json.dumps(line) + "\n")
        backend.close()
        cp.get_default_memory_pool().free_all_blocks()


if __name__ == "__main__":
    main()

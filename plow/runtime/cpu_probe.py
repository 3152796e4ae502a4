"""Ceilings of this machine, measured by the interpreter's own library: what every share of a peak is judged by."""

from __future__ import annotations

import ctypes
import tempfile
from pathlib import Path

import numpy as np

from plow.runtime.build_cpu import build
from plow.runtime.cpu_lib import I32, PTR, U32, U64, aligned, allowed_cpus, open_library

READ_BYTES = 256 << 20
"""Far beyond any last-level cache."""
REPEATS = 5
ROUNDS = 20000
"""Signals of one hop or barrier measurement."""


def probe(library: Path | None = None, threads: int = 0, read_bytes: int = READ_BYTES,
          repeats: int = REPEATS) -> dict[str, float]:
    """Best of `repeats`, with one pinned thread a core (threads: 0 = all allowed cores).

    library: an interp.so; without one it is built. Keys: threads; read_bytes_per_s and read_bytes_per_s_one;
    fp32_flops, bf16_dot_flops (all threads); hop_s, barrier_s (0 with one core). Raises ToolMissing or BundleError.
    """
    with tempfile.TemporaryDirectory() as scratch:
        lib = _declare(open_library(library or Path(scratch) / build(Path(scratch))["file"]))
    cpus = allowed_cpus()
    n = min(threads or len(cpus), len(cpus))
    pinned = (I32 * len(cpus))(*cpus)
    data = aligned(read_bytes, np.uint8)
    data[:] = 1
    pair = len(cpus) > 1
    return {
        "threads": n,
        "read_bytes_per_s": lib.plow_probe_read(data.ctypes.data, read_bytes, pinned, n, repeats),
        "read_bytes_per_s_one": lib.plow_probe_read(data.ctypes.data, read_bytes, pinned, 1, repeats),
        "fp32_flops": lib.plow_probe_fma(pinned, n, repeats),
        "bf16_dot_flops": lib.plow_probe_dot(pinned, n, repeats),
        "hop_s": lib.plow_probe_hop(pinned, repeats, ROUNDS) if pair else 0.0,
        "barrier_s": lib.plow_probe_barrier(pinned, repeats, ROUNDS) if pair else 0.0,
    }


def _declare(lib: ctypes.CDLL) -> ctypes.CDLL:
    for name, arguments in (("read", [PTR, U64, PTR, U32, U32]), ("fma", [PTR, U32, U32]), ("dot", [PTR, U32, U32]),
                            ("hop", [PTR, U32, U32]), ("barrier", [PTR, U32, U32])):
        function = getattr(lib, f"plow_probe_{name}")
        function.restype, function.argtypes = ctypes.c_double, arguments
    return lib

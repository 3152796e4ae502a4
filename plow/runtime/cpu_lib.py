"""The C interpreter's interface (kernels/cpu/vm.h) in ctypes: structs, loading, threads. Knows packets, not bundles."""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from plow.errors import BundleError, PlowError
from plow.packet.abi import ABI_VERSION, PACKET, PACKET_BYTES
from plow.packet.container import ProgramRecord
from plow.runtime.step import StepBatch

MAX_WORKERS = 256
NO_FAULT = 0xFFFFFFFF
YIELD_AFTER = 2000
"""Pauses before a waiting thread offers its core: a stranger on the core must not stop a step."""
RUN_OK, RUN_STUCK, RUN_BAD_OPCODE = 0, 1, 2
COUNTER_WORDS = 16
"""u32 of a counter: it has a cache line of its own."""
PROFILE = np.dtype([("waiting", "<u8"), ("executing", "<u8"), ("runs", "<u8")])
"""plow_profile: nanoseconds of one packet, summed over runs."""
REBUILD = "build the bundle again with plowc"

U32, U64, I32, PTR = ctypes.c_uint32, ctypes.c_uint64, ctypes.c_int32, ctypes.c_void_p
ROW_FIELDS = ("tokens", "positions", "slots")
SAMPLE_FIELDS = {"sample_rows": np.int32, "temperature": np.float32, "top_p": np.float32, "min_p": np.float32,
                 "top_k": np.int32, "seed": np.uint64}


class ProgramStruct(ctypes.Structure):
    """plow_program of vm.h."""

    _fields_: ClassVar[Any] = [
        ("lists", PTR), ("lengths", PTR), ("totals", PTR), ("counters", PTR), ("profile", PTR),
        ("workers", U32), ("num_counters", U32), ("epoch", U32)]


class StepStruct(ctypes.Structure):
    """plow_step of vm.h."""

    _fields_: ClassVar[Any] = [
        *((name, PTR) for name in (*ROW_FIELDS, *SAMPLE_FIELDS, "page_table", "picked")),
        *((name, U32) for name in ("n_rows", "n_samples", "n_steps", "blocks_per_seq", "advance"))]


class ReportStruct(ctypes.Structure):
    """plow_report of vm.h."""

    _fields_: ClassVar[Any] = [
        ("worker", U32), ("counter", U32), ("have", U32), ("want", U32), ("at", U32 * MAX_WORKERS)]


def open_library(path: Path) -> ctypes.CDLL:
    """Load an interpreter and declare its functions. Raises BundleError when it does not load or has another ABI."""
    try:
        lib = ctypes.CDLL(str(path))
        version = lib.plow_abi_version()
    except (OSError, AttributeError) as e:
        raise BundleError(f"the interpreter does not load: {e}", str(path), REBUILD) from None
    if version != ABI_VERSION:
        raise BundleError(f"the interpreter runs packet ABI {version}, this is {ABI_VERSION}", str(path), REBUILD)
    structs = [ctypes.POINTER(s) for s in (ProgramStruct, StepStruct, ReportStruct)]
    for name, result, arguments in (
        ("plow_open", PTR, [U32, PTR, PTR, U64]), ("plow_close", None, [PTR]), ("plow_scratch_bytes", U64, [PTR]),
        ("plow_configure", None, [PTR, U64, U32, U32]), ("plow_run", ctypes.c_int, [PTR, *structs]),
        ("plow_simd", ctypes.c_char_p, []),
    ):
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments
    return lib


def allowed_cpus() -> list[int]:
    """CPUs that this process may use, in order."""
    return sorted(os.sched_getaffinity(0))


def aligned(shape: int | tuple[int, ...], dtype: Any, to: int = 64) -> np.ndarray:
    """Zeroed array whose first byte lies on a multiple of `to`."""
    dtype = np.dtype(dtype)
    size = int(np.prod(shape)) * dtype.itemsize
    raw = np.zeros(size + to, np.uint8)
    start = -raw.ctypes.data % to
    return raw[start:start + size].view(dtype).reshape(shape)


class LoadedProgram:
    """A program's packets, counters and profile in memory that the interpreter reads."""

    def __init__(self, record: ProgramRecord) -> None:
        self.record = record
        self.lists = [aligned(len(packets), PACKET, PACKET_BYTES) for packets in record.lists]
        for copy, packets in zip(self.lists, record.lists, strict=True):
            copy[:] = packets
        self.counters = aligned((max(1, record.num_counters), COUNTER_WORDS), np.uint32)
        self.profile: list[np.ndarray] | None = None
        self._pointers = _addresses(self.lists)
        self._lengths = np.array([len(p) for p in self.lists], np.uint32)
        self._totals = np.array(record.counter_totals, np.uint32)
        self.struct = ProgramStruct(
            self._pointers.ctypes.data, self._lengths.ctypes.data, self._totals.ctypes.data, self.counters.ctypes.data,
            None, len(self.lists), record.num_counters, 0)

    def start_profile(self) -> list[np.ndarray]:
        """PROFILE[packets] of every worker, filled by the following runs."""
        self.profile = [np.zeros(len(p), PROFILE) for p in self.lists]
        self._profile_pointers = _addresses(self.profile)
        self.struct.profile = self._profile_pointers.ctypes.data
        return self.profile

    def stop_profile(self) -> None:
        self.struct.profile, self.profile = None, None


def _addresses(arrays: list[np.ndarray]) -> np.ndarray:
    return np.array([a.ctypes.data for a in arrays], np.uint64)


class StepBuffers:
    """The arrays of a plow_step, allocated once: a step then costs a few small copies."""

    def __init__(self, rows: int, samples: int, blocks_per_seq: int) -> None:
        self.rows = {name: np.zeros(rows, np.int32) for name in ROW_FIELDS}
        self.samples: dict[str, np.ndarray] = {name: np.zeros(samples, t) for name, t in SAMPLE_FIELDS.items()}
        addresses = {name: a.ctypes.data for name, a in {**self.rows, **self.samples}.items()}
        self.struct = StepStruct(**addresses, blocks_per_seq=blocks_per_seq)

    def fill(self, batch: StepBatch, n_steps: int, picked: np.ndarray) -> StepStruct:
        """picked: i32 [n_steps, n_samples], out. tokens and positions are copied, as the interpreter advances them."""
        for name, a in self.rows.items():
            a[:batch.n_rows] = getattr(batch, name)
        for name, a in self.samples.items():
            a[:batch.n_samples] = getattr(batch, name)
        self._table = np.ascontiguousarray(batch.page_table, np.int32)
        s = self.struct
        s.page_table, s.picked = self._table.ctypes.data, picked.ctypes.data
        s.n_rows, s.n_samples, s.n_steps, s.advance = batch.n_rows, batch.n_samples, n_steps, n_steps > 1
        return s


@dataclass
class Report:
    """Why a run was given up. at: index of the next packet of every worker's list."""

    worker: int
    counter: int
    have: int
    want: int
    at: list[int]


class Interpreter:
    """The threads of one arena. cpus: CPU of each worker, or None for no pinning.

    Raises PlowError when threads or memory are not to be had.
    """

    def __init__(self, lib: ctypes.CDLL, arena: np.ndarray, programs: list[LoadedProgram], workers: int,
                 cpus: list[int] | None = None, timeout_s: float = 10.0) -> None:
        self.lib, self.arena = lib, arena
        scratch = max(lib.plow_scratch_bytes(packets.ctypes.data + i * PACKET_BYTES)
                      for p in programs for packets in p.lists for i in range(len(packets)))
        pinned = (I32 * workers)(*cpus[:workers]) if cpus else None
        self._vm = lib.plow_open(workers, pinned, arena.ctypes.data, scratch)
        if not self._vm:
            raise PlowError(f"{workers} workers of {scratch} bytes each cannot be started", "interpreter",
                            "free memory or use fewer workers")
        self._close = weakref.finalize(self, lib.plow_close, self._vm)
        self._lock = threading.Lock()
        self._report = ReportStruct()
        self.configure(timeout_s)

    def configure(self, timeout_s: float = 10.0, yield_after: int = YIELD_AFTER, fault_seq: int = NO_FAULT) -> None:
        """timeout_s: limit of one wait; fault_seq: the packet in front of which its worker stops (for tests)."""
        self.lib.plow_configure(self._vm, int(timeout_s * 1e9), yield_after, fault_seq)

    def run(self, program: LoadedProgram, step: StepStruct) -> int:
        """RUN_OK, RUN_STUCK or RUN_BAD_OPCODE; `report` tells the rest."""
        with self._lock:
            return int(self.lib.plow_run(self._vm, program.struct, step, self._report))

    @property
    def report(self) -> Report:
        r = self._report
        return Report(r.worker, r.counter, r.have, r.want, list(r.at))

    def close(self) -> None:
        self._close()

"""CpuBackend: the C interpreter (kernels/cpu) through ctypes. One thread a worker; the caller is worker 0."""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from plow.errors import BundleError, PlowError, RequestError
from plow.packet.abi import ABI_VERSION, PACKET, PACKET_BYTES
from plow.packet.container import ProgramRecord
from plow.runtime.build_cpu import cpu_features
from plow.runtime.bundle import Bundle
from plow.runtime.step import StepBatch
from plow.runtime.stuck import stuck_dependency

MAX_WORKERS = 256
NO_FAULT = 0xFFFFFFFF
YIELD_AFTER = 2000
"""Pauses before a waiting thread offers its core; without it a stranger on the core costs up to 60 x."""
RUN_OK, RUN_STUCK, RUN_BAD_OPCODE = 0, 1, 2
COUNTER_WORDS = 16
"""u32 of a counter: it has a cache line of its own."""
PROFILE = np.dtype([("waiting", "<u8"), ("executing", "<u8"), ("runs", "<u8")])

U32, U64, I32, PTR = ctypes.c_uint32, ctypes.c_uint64, ctypes.c_int32, ctypes.c_void_p


class _Program(ctypes.Structure):
    """plow_program of vm.h."""

    _fields_: ClassVar[Any] = [("lists", PTR), ("lengths", PTR), ("totals", PTR), ("counters", PTR), ("profile", PTR),
                ("workers", U32), ("num_counters", U32), ("epoch", U32), ("rows", U32)]


class _Step(ctypes.Structure):
    """plow_step of vm.h."""

    _fields_: ClassVar[Any] = [(name, PTR) for name in ("tokens", "positions", "slots", "sample_rows", "page_table", "temperature",
                                         "top_p", "min_p", "top_k", "seed", "picked")]
    _fields_ += [(name, U32) for name in ("n_rows", "n_samples", "n_steps", "blocks_per_seq", "advance")]


class _Report(ctypes.Structure):
    """plow_report of vm.h."""

    _fields_: ClassVar[Any] = [("worker", U32), ("counter", U32), ("have", U32), ("want", U32), ("at", U32 * MAX_WORKERS)]


def open_library(path: Path) -> ctypes.CDLL:
    """Load an interpreter and declare its functions. Raises BundleError when it does not load or has another ABI."""
    try:
        lib = ctypes.CDLL(str(path))
        version = lib.plow_abi_version()
    except (OSError, AttributeError) as e:
        raise BundleError(f"the interpreter does not load: {e}", str(path), "build the bundle again with plowc") from None
    if version != ABI_VERSION:
        raise BundleError(f"the interpreter runs packet ABI {version}, this plowrt {ABI_VERSION}", str(path), "build the bundle again with plowc")
    lib.plow_open.restype, lib.plow_open.argtypes = PTR, [U32, PTR, PTR, U64]
    lib.plow_close.restype, lib.plow_close.argtypes = None, [PTR]
    lib.plow_scratch_bytes.restype, lib.plow_scratch_bytes.argtypes = U64, [PTR]
    lib.plow_configure.restype, lib.plow_configure.argtypes = None, [PTR, U64, U32, U32]
    lib.plow_run.restype, lib.plow_run.argtypes = ctypes.c_int, [PTR, ctypes.POINTER(_Program), ctypes.POINTER(_Step), ctypes.POINTER(_Report)]
    lib.plow_simd.restype = ctypes.c_char_p
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


def _arena(size: int) -> np.ndarray:
    """Zeroed u8 [size], page-aligned, in huge pages where the system gives them."""
    memory = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.uint8)


class LoadedProgram:
    """A program's packets, counters and profile in memory that the interpreter reads."""

    def __init__(self, record: ProgramRecord) -> None:
        self.record = record
        self.lists = []
        for packets in record.lists:
            copy = aligned(len(packets), PACKET, PACKET_BYTES)
            copy[:] = packets
            self.lists.append(copy)
        self._pointers = np.array([p.ctypes.data for p in self.lists], np.uint64)
        self._lengths = np.array([len(p) for p in self.lists], np.uint32)
        self._totals = np.array(record.counter_totals, np.uint32)
        self.counters = aligned((max(1, record.num_counters), COUNTER_WORDS), np.uint32)
        self.profile: list[np.ndarray] | None = None
        self.struct = _Program(
            self._pointers.ctypes.data, self._lengths.ctypes.data, self._totals.ctypes.data, self.counters.ctypes.data,
            None, len(self.lists), record.num_counters, 0, record.rows)

    def start_profile(self) -> list[np.ndarray]:
        """PROFILE[packets] of every worker (nanoseconds, summed), filled by the following runs."""
        self.profile = [np.zeros(len(p), PROFILE) for p in self.lists]
        self._profile_pointers = np.array([p.ctypes.data for p in self.profile], np.uint64)
        self.struct.profile = self._profile_pointers.ctypes.data
        return self.profile

    def stop_profile(self) -> None:
        self.struct.profile, self.profile = None, None


class Interpreter:
    """Threads of one arena. Knows packets and counters, nothing of bundles.

    cpus: CPU of each worker, or None for no pinning. Raises PlowError when threads or memory are not to be had.
    """

    def __init__(self, lib: ctypes.CDLL, arena: np.ndarray, programs: list[LoadedProgram], workers: int,
                 cpus: list[int] | None = None, timeout_s: float = 10.0) -> None:
        self.lib, self.arena = lib, arena
        scratch = max(lib.plow_scratch_bytes(packets.ctypes.data + i * PACKET_BYTES)
                      for p in programs for packets in p.lists for i in range(len(packets)))
        pinned = (I32 * workers)(*cpus[:workers]) if cpus else None
        self._vm = lib.plow_open(workers, pinned, arena.ctypes.data, scratch)
        if not self._vm:
            raise PlowError(f"{workers} workers with {scratch} bytes each cannot be started", "interpreter", "free memory or use fewer workers")
        self._close = weakref.finalize(self, lib.plow_close, self._vm)
        self._lock = threading.Lock()
        self._report = _Report()
        self.configure(timeout_s)

    def configure(self, timeout_s: float = 10.0, yield_after: int = YIELD_AFTER, fault_seq: int = NO_FAULT) -> None:
        """timeout_s: limit of one wait; fault_seq: the packet in front of which its worker stops (for tests)."""
        self.lib.plow_configure(self._vm, int(timeout_s * 1e9), yield_after, fault_seq)

    def run(self, program: LoadedProgram, step: _Step) -> int:
        """RUN_OK, RUN_STUCK or RUN_BAD_OPCODE; `report` tells the rest."""
        with self._lock:
            return int(self.lib.plow_run(self._vm, program.struct, step, self._report))

    @property
    def report(self) -> tuple[int, int, int, int, list[int]]:
        """worker, counter, have, want, next packet of every worker's list."""
        r = self._report
        return r.worker, r.counter, r.have, r.want, list(r.at)

    def close(self) -> None:
        self._close()


@dataclass
class StepBuffers:
    """Arrays of a plow_step that live as long as the backend, so that a step costs a few copies and no pointers."""

    rows: dict[str, np.ndarray]
    samples: dict[str, np.ndarray]
    struct: _Step

    @classmethod
    def make(cls, rows: int, samples: int, blocks_per_seq: int) -> StepBuffers:
        by_row = {n: np.zeros(rows, np.int32) for n in ("tokens", "positions", "slots")}
        by_sample = {"sample_rows": np.zeros(samples, np.int32), "top_k": np.zeros(samples, np.int32), "seed": np.zeros(samples, np.uint64)}
        by_sample |= {n: np.zeros(samples, np.float32) for n in ("temperature", "top_p", "min_p")}
        struct = _Step(**{n: a.ctypes.data for n, a in {**by_row, **by_sample}.items()}, blocks_per_seq=blocks_per_seq)
        return cls(by_row, by_sample, struct)

    def fill(self, batch: StepBatch, n_steps: int, picked: np.ndarray) -> tuple[_Step, list[np.ndarray]]:
        """The step and the arrays that must outlive it. tokens and positions are copies: the device advances them."""
        for name, a in self.rows.items():
            a[:batch.n_rows] = getattr(batch, name)
        for name, a in self.samples.items():
            a[:batch.n_samples] = getattr(batch, name)
        table = np.ascontiguousarray(batch.page_table, np.int32)
        s = self.struct
        s.page_table, s.picked = table.ctypes.data, picked.ctypes.data
        s.n_rows, s.n_samples, s.n_steps, s.advance = batch.n_rows, batch.n_samples, n_steps, n_steps > 1
        return s, [table, picked]


class CpuBackend:
    """The Backend protocol on this machine's cores.

    pin: one CPU a worker; timeout_s: limit of one wait (a healthy step on a busy machine took up to 1.3 s);
    interpreter: another build than the bundle's. Raises BundleError when the bundle needs more cores or other vector
    instructions than the machine has.
    """

    def __init__(self, bundle: Bundle, pin: bool = True, timeout_s: float = 10.0, interpreter: Path | None = None) -> None:
        self.bundle = bundle
        workers, cpus = int(bundle.packets.header["workers"]), allowed_cpus()
        if workers > len(cpus):
            raise BundleError(f"the bundle wants {workers} workers, this process may use {len(cpus)} cores", str(bundle.path),
                              f"build it with plowc --workers {len(cpus)}")
        if interpreter is None:
            _check_features(bundle)
        self._lib = open_library(interpreter or bundle.file("interpreter"))
        self.arena = _arena(bundle.arena_bytes)
        image = bundle.weights()
        self.arena[:len(image)] = image
        self.programs = [LoadedProgram(r) for r in bundle.packets.programs]
        self.interpreter = Interpreter(self._lib, self.arena, self.programs, workers, cpus if pin else None, timeout_s)
        limits = bundle.limits
        self._buffers = StepBuffers.make(limits.max_rows, limits.max_samples, limits.blocks_per_seq)

    def run(self, program: int, batch: StepBatch, n_steps: int = 1) -> np.ndarray:
        """See Backend.run."""
        loaded = self._program(program)
        batch.check(self.bundle.limits, loaded.record.rows, loaded.record.samples, n_steps)
        picked = np.zeros((n_steps, batch.n_samples), np.int32)
        step, keep = self._buffers.fill(batch, n_steps, picked)
        status = self.interpreter.run(loaded, step)
        del keep
        if status != RUN_OK:
            self._fail(status, program)
        return picked

    def _fail(self, status: int, program: int) -> None:
        worker, counter, have, want, at = self.interpreter.report
        if status == RUN_BAD_OPCODE:
            raise BundleError(f"worker {worker} met an unknown opcode", f"program {program}", "build the bundle again with plowc")
        raise stuck_dependency(self.bundle.packets, program, worker, at, counter, have, want)

    def _program(self, index: int) -> LoadedProgram:
        if not 0 <= index < len(self.programs):
            raise RequestError(f"no program {index}", str(self.bundle.path), f"use 0..{len(self.programs) - 1}")
        return self.programs[index]

    def logits(self, program: int, n_samples: int) -> np.ndarray:
        record = self.bundle.packets.programs[program]
        start = record.logits_offset
        rows = self.arena[start:start + 4 * n_samples * record.logits_stride].view(np.float32)
        return rows.reshape(n_samples, record.logits_stride)[:, :self.bundle.limits.vocab_size]

    def close(self) -> None:
        self.interpreter.close()


def _check_features(bundle: Bundle) -> None:
    """Refuse a library whose instructions this processor lacks: it would end in SIGILL."""
    needed = set(bundle.manifest["interpreter"].get("cpu_features", []))
    missing = sorted(needed - cpu_features())
    if missing:
        raise BundleError(f"the interpreter needs {', '.join(missing)}, which this processor lacks", str(bundle.file("interpreter")),
                          "build the bundle again with plowc on this machine, or set PLOW_SIMD=portable")

"""CpuBackend: the C interpreter (kernels/cpu) behind the Backend protocol. The caller is worker 0."""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np

from plow.errors import BundleError, RequestError
from plow.runtime.build_cpu import cpu_features
from plow.runtime.bundle import REBUILD, Bundle
from plow.runtime.cpu_lib import (
    RUN_BAD_OPCODE,
    RUN_OK,
    Interpreter,
    LoadedProgram,
    StepBuffers,
    allowed_cpus,
    open_library,
)
from plow.runtime.step import StepBatch
from plow.runtime.stuck import stuck_dependency


class CpuBackend:
    """Executes a bundle on this machine's cores.

    pin: one CPU a worker; timeout_s: limit of one wait (a healthy step on a busy machine can take over a second);
    interpreter: another build than the bundle's. Raises BundleError when the bundle needs more cores or other vector
    instructions than there are.
    """

    def __init__(self, bundle: Bundle, pin: bool = True, timeout_s: float = 10.0,
                 interpreter: Path | None = None) -> None:
        self.bundle = bundle
        workers, cpus = int(bundle.packets.header["workers"]), allowed_cpus()
        if workers > len(cpus):
            raise BundleError(f"the bundle wants {workers} workers, this process may use {len(cpus)} cores",
                              str(bundle.path), f"build it with plowc --workers {len(cpus)}")
        if interpreter is None:
            _check_features(bundle)
        lib = open_library(interpreter or bundle.file("interpreter"))
        self.arena = _arena(bundle.arena_bytes)
        image = bundle.weights()
        self.arena[:len(image)] = image
        self.programs = [LoadedProgram(r) for r in bundle.packets.programs]
        self.interpreter = Interpreter(lib, self.arena, self.programs, workers, cpus if pin else None, timeout_s)
        limits = bundle.limits
        self._buffers = StepBuffers(limits.max_rows, limits.max_samples, limits.blocks_per_seq)

    def run(self, program: int, batch: StepBatch, n_steps: int = 1) -> np.ndarray:
        """See Backend.run."""
        loaded = self._program(program)
        batch.check(self.bundle.limits, loaded.record.rows, loaded.record.samples, n_steps)
        picked = np.zeros((n_steps, batch.n_samples), np.int32)
        status = self.interpreter.run(loaded, self._buffers.fill(batch, n_steps, picked))
        if status != RUN_OK:
            self._fail(status, program)
        return picked

    def _fail(self, status: int, program: int) -> None:
        r = self.interpreter.report
        if status == RUN_BAD_OPCODE:
            raise BundleError(f"worker {r.worker} met an unknown opcode", f"program {program}", REBUILD)
        raise stuck_dependency(self.bundle.packets, program, r.worker, r.at, r.counter, r.have, r.want)

    def _program(self, index: int) -> LoadedProgram:
        if not 0 <= index < len(self.programs):
            raise RequestError(f"no program {index}", str(self.bundle.path), f"use 0..{len(self.programs) - 1}")
        return self.programs[index]

    def logits(self, program: int, n_samples: int) -> np.ndarray:
        """See Backend.logits."""
        record = self._program(program).record
        rows = self.arena[record.logits_offset:][:4 * n_samples * record.logits_stride].view(np.float32)
        return rows.reshape(n_samples, record.logits_stride)[:, :self.bundle.limits.vocab_size]

    steps_per_call = 1

    def recover(self) -> bool:
        """See Backend.recover: a stopped program starts anew, and its arena is whole."""
        return True

    def close(self) -> None:
        self.interpreter.close()


def _arena(size: int) -> np.ndarray:
    """Zeroed u8 [size], page-aligned, in huge pages where the system gives them."""
    memory = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.uint8)


def _check_features(bundle: Bundle) -> None:
    """Refuse a library whose instructions this processor lacks: it would end in SIGILL."""
    missing = sorted(set(bundle.manifest["interpreter"].get("cpu_features", [])) - cpu_features())
    if missing:
        raise BundleError(f"the interpreter needs {', '.join(missing)}, which this processor lacks",
                          str(bundle.file("interpreter")), "build it on this machine, or with PLOW_SIMD=portable")

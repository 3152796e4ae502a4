"""CudaBackend: the CUDA interpreter (kernels/cuda) behind the Backend protocol, by way of CuPy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from plow.errors import BundleError, RequestError
from plow.packet.abi import ALIGN, PACKET, STREAM_COLUMNS
from plow.packet.container import ProgramRecord
from plow.runtime import cuda_weights
from plow.runtime.bundle import REBUILD, Bundle
from plow.runtime.cuda_device import (
    DeviceError,
    Kernel,
    check_device,
    cupy,
    failures,
    interpreter,
    words,
)
from plow.runtime.cuda_lock import hold
from plow.runtime.cuda_params import JOB, rows_of
from plow.runtime.cuda_resident import INFLIGHT, MAX_STEPS, Settings, Stopped, resident
from plow.runtime.cuda_stuck import Published, stuck
from plow.runtime.step import StepBatch

WARM_STEPS = 5


def copy_bytes(bundle: Bundle) -> int:
    """Bytes of one copy of the published data. Raises BundleError: a wrong number would become an address."""
    size = bundle.packets.header.get("published_bytes")
    segment = bundle.segments.get("published", (0, -1))
    if not isinstance(size, int) or size % ALIGN or 2 * size != segment[1] or segment[0] % ALIGN:
        what = f"header entry published_bytes is {size!r}, the segment `published` {segment}"
        raise BundleError(what, str(bundle.path / "model.pkt"), REBUILD)
    return size


@dataclass
class _Program:
    """A program on the device. steps: how many it has completed, which says what copy of its data comes next."""

    record: ProgramRecord
    packets: Any
    counts: Any
    max_packets: int
    kernel: Kernel
    steps: int = 0


class CudaBackend:
    """Executes a bundle on the GPU. flags: diagnosis switches of kernels/cuda/params.h (results are then wrong);
    inflight: ring stages in flight; lost: why nothing runs any more; stopped: `recover` helps.

    Raises ToolMissing without CuPy, DeviceError when the device has another ISA, too few SMs or too little memory.
    """

    steps_per_call = 32

    def __init__(self, bundle: Bundle) -> None:
        self.bundle, self.cp = bundle, cupy()
        self.flags, self.inflight, self.lost, self.stopped = 0, INFLIGHT, "", False
        self.workers = int(bundle.packets.header["workers"])
        self._failures = failures(self.cp)
        self._load()

    def _load(self) -> None:
        cp, bundle, limits = self.cp, self.bundle, self.bundle.limits
        self._programs: dict[int, _Program] = {}
        self._known_pages: np.ndarray | None = None
        self._last: tuple[int, np.ndarray] | None = None
        self._tokens = np.zeros((0, STREAM_COLUMNS), np.int32)
        self._copy_bytes = copy_bytes(bundle)
        sms = check_device(cp, bundle)
        hold(cp)
        loaded = interpreter(cp, bundle, sms)
        self._kernels = [loaded.kernel(record) for record in bundle.packets.programs]
        with self._device("loading"):
            self.resident = resident(cp, self.workers)
            self.resident.leave()
            self._stream = cp.cuda.Stream(non_blocking=True)
            self._arena = cp.zeros(bundle.arena_bytes, cp.uint8)
            cp.cuda.get_current_stream().synchronize()
            (cuda_weights.draw if bundle.synthetic else cuda_weights.upload)(cp, self._arena, bundle)
            self._rearm()
            self._page_table = cp.zeros((limits.max_slots, limits.blocks_per_seq), cp.int32)
            for index in range(len(self._kernels)):
                self._programs[index] = self._upload(index)
            cp.cuda.get_current_stream().synchronize()

    def _upload(self, index: int) -> _Program:
        """A program's lists, padded to one length."""
        cp, record = self.cp, self.bundle.packets.programs[index]
        longest = max(len(x) for x in record.lists)
        table = np.zeros((len(record.lists), longest), PACKET)
        for w, packets in enumerate(record.lists):
            table[w, : len(packets)] = packets
        return _Program(
            record,
            cp.asarray(table.view(np.uint8).reshape(-1)),
            cp.asarray([len(x) for x in record.lists], cp.uint32),
            longest,
            self._kernels[index],
        )

    @property
    def arena(self) -> np.ndarray:
        """A copy of the device's arena, for comparisons."""
        with self._device("arena"):
            return np.asarray(self._arena.get(stream=self._stream))

    @property
    def device_arena(self) -> Any:
        """The arena itself, a u8 device array; the SMs are free for kernels that work on it."""
        self.resident.leave()
        return self._arena

    def last_tokens(self, n_steps: int, n_samples: int) -> np.ndarray:
        """i32 [n_steps, n_samples]: what the last call sampled."""
        return self._tokens[:n_steps, :n_samples]

    # -- running -------------------------------------------------------------------------------------------------------
    def run(self, program: int, batch: StepBatch, n_steps: int = 1) -> np.ndarray:
        """See Backend.run."""
        self._check(program, batch, n_steps)
        done = 0
        found = np.empty((n_steps, batch.n_samples), np.int32)
        while done < n_steps:
            part, now = min(n_steps - done, MAX_STEPS), batch
            if done:
                moved = batch.positions + np.int32(done)
                now = replace(batch, tokens=found[done - 1].copy(), positions=moved)
            found[done : done + part] = self._run(program, now, part)[:, : batch.n_samples]
            done += part
        return found

    def logits(self, program: int, n_samples: int) -> np.ndarray:
        """f32 [n_samples, vocab]: of the last step; see Backend.logits. Raises RequestError when that step was of
        another program or had fewer samples."""
        record, vocab = self._record(program), self.bundle.limits.vocab_size
        last, rows = self._last or (-1, np.zeros(0, np.int32))
        if last != program or n_samples > len(rows):
            raise RequestError(
                f"no logits of {n_samples} samples of program {program}", "CudaBackend", "run that program first"
            )
        found = np.empty((n_samples, vocab), np.float32)
        with self._device(f"program {program}"):
            for s, row in enumerate(rows[:n_samples]):
                at = record.logits_offset + 4 * int(row) * record.logits_stride
                found[s] = self._arena[at : at + 4 * vocab].view(self.cp.float32).get(stream=self._stream)
            self._stream.synchronize()
        return found

    def time_steps(self, program: int, batch: StepBatch, n_steps: int) -> float:
        """Milliseconds a step: one launch of n_steps between two events, after a short one."""
        self._check(program, batch, n_steps)
        cp = self.cp
        self._run(program, batch, min(WARM_STEPS, n_steps))
        events = cp.cuda.Event(), cp.cuda.Event()
        self._run(program, batch, n_steps, events)
        return float(cp.cuda.get_elapsed_time(*events)) / n_steps

    def trace(self, program: int, batch: StepBatch, n_steps: int = 3) -> np.ndarray:
        """u64 [workers, max_packets, 4]: nanoseconds at start, inputs ready, done, published of each packet of the last
        step; 0 where a packet has no such point."""
        self._check(program, batch, n_steps)
        with self._device(f"program {program}"):
            self.resident.leave()
            found = self.cp.zeros((self.workers, self._programs[program].max_packets, 4), self.cp.uint64)
            self.cp.cuda.get_current_stream().synchronize()
        self._run(program, batch, n_steps, trace=found.data.ptr)
        with self._device(f"program {program}"):
            self.resident.leave()
            return np.asarray(found.get())

    def recover(self) -> bool:
        """See Backend.recover: a kernel that stopped itself leaves a whole context; only data of the failed step are
        wrong. What CUDA calls a failure of the device, no process survives: raises DeviceError."""
        if not self.lost:
            return True
        if not self.stopped:
            raise DeviceError("the device failed, and this process's context", self.lost, "start a fresh process")
        self.lost, self.stopped = "", False
        with self._device("recovery"):
            self._rearm()
        return True

    def _rearm(self) -> None:
        """Nothing is published, in both copies of all programs."""
        at, size = self.bundle.segments["published"]
        self.cp.cuda.runtime.memset(self._arena.data.ptr + at, 0xFF, size)
        self.cp.cuda.get_current_stream().synchronize()

    def close(self) -> None:
        """Give the device's memory back. A lost context holds it until the process ends."""
        usable = not self.lost or self.stopped
        if usable:
            self.resident.leave()
        self._programs = {}
        self._arena = self._page_table = None
        if usable:
            self.cp.get_default_memory_pool().free_all_blocks()
            self.lost, self.stopped = "the backend is closed", False

    # -- the device ----------------------------------------------------------------------------------------------------
    @contextmanager
    def _device(self, where: str) -> Iterator[None]:
        """CUDA's errors in the block become typed ones; after all but a failed allocation the device is lost."""
        if self.lost:
            fix = "recover it" if self.stopped else "start a fresh process"
            raise DeviceError("this backend runs nothing any more", self.lost, fix)
        try:
            yield
        except self.cp.cuda.memory.OutOfMemoryError as e:
            fix = "lower --max-ctx or --max-batch, or end other processes"
            raise DeviceError(f"out of device memory: {words(e)}", where, fix) from None
        except DeviceError as e:
            self.lost = e.what
            raise
        except self._failures as e:
            self.lost = words(e)
            raise DeviceError(f"the device failed: {self.lost}", where, "start a fresh process") from e

    def _check(self, program: int, batch: StepBatch, n_steps: int) -> None:
        """The kernel looks at none of this: an index out of range would become an address."""
        record = self._record(program)
        batch.check(self.bundle.limits, record.rows, record.samples, n_steps)

    def _record(self, index: int) -> ProgramRecord:
        records = self.bundle.packets.programs
        if not 0 <= index < len(records):
            raise RequestError(f"no program {index}", str(self.bundle.path), f"use 0..{len(records) - 1}")
        return records[index]

    def _run(
        self, program: int, batch: StepBatch, n_steps: int, events: tuple[Any, Any] | None = None, trace: int = 0
    ) -> np.ndarray:
        """Run checked steps and wait for them; returns i32 [n_steps, STREAM_COLUMNS], tokens by sample."""
        with self._device(f"program {program}"):
            loaded = self._programs[program]
            if self._known_pages is None or not np.array_equal(self._known_pages, batch.page_table):
                self._page_table.set(np.maximum(batch.page_table, 0), stream=self._stream)
                self._stream.synchronize()
                self._known_pages = batch.page_table.copy()
            settings = Settings(loaded.kernel, self.flags, self.inflight, trace)
            seen: list[np.ndarray] = []
            try:
                self._tokens = self.resident.run(
                    settings, self._job(loaded, batch, n_steps), events, lambda: seen.append(self._published())
                )
            except Stopped as e:
                found = Published(seen[0], self.bundle.segments["published"][0], loaded.steps) if seen else None
                error = stuck(self.bundle.packets, program, batch.n_rows, e.diag, found)
                self.lost, self.stopped = f"{error.what} [{error.where}]", True
                raise error from e
            loaded.steps += n_steps
        self._last = program, batch.sample_rows.copy()
        return self._tokens

    def _published(self) -> np.ndarray:
        """u32: both copies of the published data as they are now, while the kernel runs."""
        at, size = self.bundle.segments["published"]
        return np.asarray(self._arena[at : at + size].view(self.cp.uint32).get(stream=self._stream))

    def _job(self, loaded: _Program, batch: StepBatch, n_steps: int) -> np.ndarray:
        job = np.zeros((), JOB)
        arrays = {"packets": loaded.packets, "counts": loaded.counts, "arena": self._arena}
        for name, array in (arrays | {"page_table": self._page_table}).items():
            job[name] = array.data.ptr
        job["n_steps"], job["parity"], job["max_packets"] = n_steps, loaded.steps & 1, loaded.max_packets
        job["published"] = self._copy_bytes // ALIGN
        job["blocks_per_seq"] = self.bundle.limits.blocks_per_seq
        rows_of(job, batch)
        return job

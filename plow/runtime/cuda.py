"""CudaBackend: the CUDA interpreter (kernels/cuda) behind the Backend protocol, by way of CuPy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from plow.errors import RequestError
from plow.packet.abi import PACKET, STREAM_COLUMNS
from plow.packet.container import ProgramRecord
from plow.runtime import cuda_weights
from plow.runtime.bundle import Bundle
from plow.runtime.cuda_device import DeviceError, Interpreter, Kernel, check_device, cupy, failures, words
from plow.runtime.cuda_params import DIAG_NOTES, DIAG_WARPS, PARAMS, rows_of, stuck
from plow.runtime.sampler import sample
from plow.runtime.step import StepBatch

COUNTER_WORDS = 32
INFLIGHT = 5
"""Ring stages of 16 KiB that a worker keeps in flight: more only delays polls."""
OUT_STEPS = 64
WARM_STEPS = 5


@dataclass
class _Program:
    """A program on the device. steps: how many it has completed since its counters were zero."""

    record: ProgramRecord
    packets: Any
    counts: Any
    counters: Any
    max_packets: int
    kernel: Kernel
    steps: int = 0


class CudaBackend:
    """Executes a bundle on the GPU. flags: diagnosis switches of kernels/cuda/params.h (results are then wrong);
    inflight: ring stages in flight; lost: why nothing runs any more.

    Raises ToolMissing without CuPy, DeviceError when the device has another ISA, too few SMs or too little memory.
    """

    def __init__(self, bundle: Bundle) -> None:
        self.bundle, self.cp = bundle, cupy()
        self.flags, self.inflight, self.lost = 0, INFLIGHT, ""
        self.workers = int(bundle.packets.header["workers"])
        self._failures = failures(self.cp)
        self._programs: dict[int, _Program] = {}
        self._known_pages: np.ndarray | None = None
        self._last: tuple[int, np.ndarray] | None = None
        interpreter = Interpreter(self.cp, bundle, check_device(self.cp, bundle))
        self._kernels = [interpreter.kernel(record) for record in bundle.packets.programs]
        with self._device("loading"):
            self._allocate()

    def _allocate(self) -> None:
        cp, bundle, limits = self.cp, self.bundle, self.bundle.limits
        self._arena = cp.zeros(bundle.arena_bytes, cp.uint8)
        cp.cuda.get_current_stream().synchronize()
        (cuda_weights.draw if bundle.synthetic else cuda_weights.upload)(cp, self._arena, bundle)
        self.published, size = bundle.segments["published"]
        self._both_copies = self._arena[self.published : self.published + size]
        count = DIAG_NOTES + self.workers * DIAG_WARPS * 2
        self._pinned = cp.cuda.alloc_pinned_memory(8 * count)
        self._diag = np.frombuffer(self._pinned, np.uint64, count)
        self._page_table = cp.zeros((limits.max_slots, limits.blocks_per_seq), cp.int32)
        self._out = cp.zeros((OUT_STEPS, STREAM_COLUMNS), cp.int32)
        cp.cuda.get_current_stream().synchronize()

    @property
    def arena(self) -> np.ndarray:
        """A copy of the device's arena, for comparisons."""
        with self._device("arena"):
            return self._arena.get()

    @property
    def device_arena(self) -> Any:
        """The arena itself, a u8 device array."""
        return self._arena

    def last_tokens(self, n_steps: int, n_samples: int) -> np.ndarray:
        """i32 [n_steps, n_samples]: what the last launch sampled."""
        return np.asarray(self._out[:n_steps, :n_samples].get())

    # -- running -------------------------------------------------------------------------------------------------------
    def run(self, program: int, batch: StepBatch, n_steps: int = 1) -> np.ndarray:
        """See Backend.run. A batch with sampled rows (temperature > 0) runs step by step and is sampled on the host."""
        self._check(program, batch, n_steps)
        if not batch.temperature.any():
            return self._launch(program, batch, n_steps)[:, : batch.n_samples]
        picked = np.zeros((n_steps, batch.n_samples), np.int32)
        live = batch
        for e in range(n_steps):
            self._launch(program, live, 1)
            picked[e] = _sample(live, self.logits(program, batch.n_samples))
            if n_steps > 1:
                live = replace(live, tokens=picked[e].copy(), positions=live.positions + np.int32(1))
        return picked

    def logits(self, program: int, n_samples: int) -> np.ndarray:
        """f32 [n_samples, vocab]: of the last step; see Backend.logits. Raises RequestError when that step was of
        another program or had fewer samples."""
        record, vocab = self._program(program).record, self.bundle.limits.vocab_size
        last, rows = self._last or (-1, np.zeros(0, np.int32))
        if last != program or n_samples > len(rows):
            raise RequestError(
                f"no logits of {n_samples} samples of program {program}", "CudaBackend", "run that program first"
            )
        found = np.empty((n_samples, vocab), np.float32)
        with self._device(f"program {program}"):
            for s, row in enumerate(rows[:n_samples]):
                at = record.logits_offset + 4 * int(row) * record.logits_stride
                found[s] = self._arena[at : at + 4 * vocab].view(self.cp.float32).get()
        return found

    def time_steps(self, program: int, batch: StepBatch, n_steps: int) -> float:
        """Milliseconds a step: one launch of n_steps between two events, after a short launch. Greedy rows only."""
        self._check(program, batch, n_steps)
        cp = self.cp
        self._launch(program, batch, min(WARM_STEPS, n_steps))
        begin, end = cp.cuda.Event(), cp.cuda.Event()
        self._launch(program, batch, n_steps, events=(begin, end))
        return float(cp.cuda.get_elapsed_time(begin, end)) / n_steps

    def trace(self, program: int, batch: StepBatch, n_steps: int = 3) -> np.ndarray:
        """u64 [workers, max_packets, 4]: nanoseconds at start, inputs ready, done, published of each packet of the last
        step; 0 where a packet has no such point."""
        self._check(program, batch, n_steps)
        with self._device(f"program {program}"):
            found = self.cp.zeros((self.workers, self._program(program).max_packets, 4), self.cp.uint64)
        self._launch(program, batch, n_steps, trace=found)
        with self._device(f"program {program}"):
            return found.get()

    def close(self) -> None:
        """Give the device's memory back. A lost context holds it until the process ends."""
        self._programs.clear()
        self._arena = self._both_copies = self._page_table = self._out = None
        if not self.lost:
            self.cp.get_default_memory_pool().free_all_blocks()
            self.lost = "the backend is closed"

    # -- the device ----------------------------------------------------------------------------------------------------
    @contextmanager
    def _device(self, where: str) -> Iterator[None]:
        """CUDA's errors in the block become typed ones; after all but a failed allocation the device is lost."""
        if self.lost:
            raise DeviceError("this backend runs nothing any more", self.lost, "start a fresh process")
        try:
            yield
        except self.cp.cuda.memory.OutOfMemoryError as e:
            fix = "lower --max-ctx or --max-batch, or end other processes"
            raise DeviceError(f"out of device memory: {words(e)}", where, fix) from None
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

    def _program(self, index: int) -> _Program:
        record = self._record(index)
        if index not in self._programs:
            cp, longest = self.cp, max(len(x) for x in record.lists)
            table = np.zeros((len(record.lists), longest), PACKET)
            for w, packets in enumerate(record.lists):
                table[w, : len(packets)] = packets
            with self._device(f"program {index}"):
                self._programs[index] = _Program(
                    record,
                    cp.asarray(table.view(np.uint8).reshape(-1)),
                    cp.asarray([len(x) for x in record.lists], cp.uint32),
                    cp.zeros(record.num_counters * COUNTER_WORDS, cp.uint32),
                    longest,
                    self._kernels[index],
                )
        return self._programs[index]

    def _launch(
        self, program: int, batch: StepBatch, n_steps: int, events: tuple[Any, Any] | None = None, trace: Any = None
    ) -> np.ndarray:
        """Run checked steps and wait for them; returns i32 [n_steps, STREAM_COLUMNS], tokens by sample."""
        loaded, lost_before = self._program(program), self.lost
        try:
            with self._device(f"program {program}"):
                self._prepare(batch, n_steps)
                params = self._params(loaded, batch, n_steps, trace)
                if events:
                    events[0].record()
                loaded.kernel.launch(params)
                if events:
                    events[1].record()
                self.cp.cuda.get_current_stream().synchronize()
                loaded.steps += n_steps
                self._last = program, batch.sample_rows.copy()
                return self._out[:n_steps].get()
        except DeviceError as e:
            if lost_before or not self._diag[0]:
                raise
            error = stuck(self.bundle.packets, program, self._diag)
            self.lost = f"{error.what} [{error.where}]"
            raise error from e

    def _prepare(self, batch: StepBatch, n_steps: int) -> None:
        """Everything on the device that the launch relies on, beside its parameters."""
        if len(self._out) < n_steps:
            self._out = self.cp.zeros((n_steps, STREAM_COLUMNS), self.cp.int32)
        if self._known_pages is None or not np.array_equal(self._known_pages, batch.page_table):
            self._page_table.set(np.maximum(batch.page_table, 0))
            self._known_pages = batch.page_table.copy()
        self._diag[:] = 0
        self._both_copies.fill(0xFF)

    def _params(self, loaded: _Program, batch: StepBatch, n_steps: int, trace: Any) -> np.ndarray:
        p = np.zeros((), PARAMS)
        pointers = {
            "packets": loaded.packets,
            "counts": loaded.counts,
            "counters": loaded.counters,
            "arena": self._arena,
            "page_table": self._page_table,
            "out_tokens": self._out,
        }
        for name, array in pointers.items():
            p[name] = array.data.ptr
        p["diag"] = self._pinned.ptr
        p["trace"] = 0 if trace is None else trace.data.ptr
        p["published_offset"], p["published_bytes"] = self.published, self.bundle.packets.header["published_bytes"]
        p["max_packets"], p["workers"] = loaded.max_packets, self.workers
        p["blocks_per_seq"], p["n_steps"] = self.bundle.limits.blocks_per_seq, n_steps
        p["step_base"] = loaded.steps & 0xFFFFFFFF  # like the counters, it wraps
        p["flags"], p["inflight"] = self.flags, self.inflight
        rows_of(p, batch)
        return p


def _sample(batch: StepBatch, logits: np.ndarray) -> list[int]:
    """The reference sampler on f32 [n_samples, vocab]."""
    return [
        sample(
            logits[s],
            float(batch.temperature[s]),
            int(batch.top_k[s]),
            float(batch.top_p[s]),
            float(batch.min_p[s]),
            int(batch.seed[s]),
            int(batch.positions[row]),
        )
        for s, row in enumerate(batch.sample_rows)
    ]

"""CudaBackend: the resident interpreter (kernels/cuda) behind the Backend protocol, by way of CuPy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from plow.errors import BundleError, PlowError, RequestError, ToolMissing
from plow.packet.abi import ABI_VERSION, PACKET, PACKET_BYTES, STREAM_COLUMNS, Opcode
from plow.packet.codec import decode
from plow.packet.container import ProgramRecord
from plow.runtime import cuda_weights
from plow.runtime.bundle import REBUILD, Bundle
from plow.runtime.cuda_params import DIAG_NOTES, DIAG_WARPS, PARAMS, rows_of, stuck
from plow.runtime.sampler import sample
from plow.runtime.step import StepBatch

CAPABILITY = "90"
COUNTER_WORDS = 32
INFLIGHT = 4
"""Ring stages of 16 KiB that a worker keeps in flight: more only delays polls."""


class DeviceError(PlowError):
    """The device is missing, does not fit the bundle, or failed."""

    exit_code = 1


@dataclass
class _Program:
    """A program on the device. steps: how many it has completed since its counters were zero."""

    record: ProgramRecord
    packets: Any
    counts: Any
    counters: Any
    max_packets: int
    kernel: Any
    steps: int = 0


class CudaBackend:
    """Executes a bundle on the GPU. flags: diagnosis switches of kernels/cuda/params.h (results are then wrong).

    Raises ToolMissing without CuPy, DeviceError when the device has another ISA, too few SMs or too little memory.
    """

    def __init__(self, bundle: Bundle) -> None:
        try:
            import cupy as cp
        except ImportError:
            raise ToolMissing("CuPy is not installed", "--backend cuda", "pip install plow[cuda]") from None
        self.bundle, self.cp = bundle, cp
        self.flags, self.inflight = 0, INFLIGHT
        self.lost = ""
        self.workers = int(bundle.packets.header["workers"])
        self._check_device()
        module = cp.RawModule(path=str(bundle.file("interpreter")))
        self._module = module
        launch = cp.ndarray((4,), cp.uint32, module.get_global("plow_launch")).get()
        self.threads, self.shared = int(launch[0]), int(launch[1])
        if int(launch[2]) != PARAMS.itemsize or int(launch[3]) != ABI_VERSION:
            raise BundleError(
                f"the interpreter has ABI {int(launch[3])}, this plowrt {ABI_VERSION}", str(bundle.path), REBUILD
            )
        self._arena = cp.zeros(bundle.arena_bytes, cp.uint8)
        (cuda_weights.draw if bundle.synthetic else cuda_weights.upload)(cp, self._arena, bundle)
        self.published, size = bundle.segments["published"]
        self._both_copies = self._arena[self.published : self.published + size]
        words = DIAG_NOTES + self.workers * DIAG_WARPS * 2
        self._pinned = cp.cuda.alloc_pinned_memory(8 * words)
        self._diag = np.frombuffer(self._pinned, np.uint64, words)
        self._programs: dict[int, _Program] = {}
        limits = bundle.limits
        self._page_table = cp.zeros((limits.max_slots, limits.blocks_per_seq), cp.int32)
        self._known_pages: np.ndarray | None = None
        self._out = cp.zeros((64, STREAM_COLUMNS), cp.int32)
        cp.cuda.get_current_stream().synchronize()

    def _check_device(self) -> None:
        cp = self.cp
        try:
            device = cp.cuda.Device()
            capability, sms = device.compute_capability, device.attributes["MultiProcessorCount"]
            free, total = cp.cuda.runtime.memGetInfo()
        except cp.cuda.runtime.CUDARuntimeError as e:
            raise DeviceError(f"no usable CUDA device: {e}", "--backend cuda", "check nvidia-smi") from None
        where = str(self.bundle.path)
        if capability != CAPABILITY:
            raise DeviceError(
                f"the device has compute capability {capability}, the bundle wants {CAPABILITY}",
                where,
                "build for the device that you have",
            )
        if sms < self.workers:
            raise DeviceError(
                f"the bundle wants {self.workers} SMs, the device has {sms}",
                where,
                f"build it with plowc --workers {sms}",
            )
        if free < self.bundle.arena_bytes:
            raise DeviceError(
                f"the arena needs {self.bundle.arena_bytes / 1e9:.1f} GB, {free / 1e9:.1f} of {total / 1e9:.1f} "
                "GB are free",
                where,
                "lower --max-ctx or --max-batch, or end other processes",
            )

    @property
    def arena(self) -> np.ndarray:
        """A copy of the device's arena, for comparisons."""
        return self._arena.get()

    # -- running -------------------------------------------------------------------------------------------------------
    def run(self, program: int, batch: StepBatch, n_steps: int = 1) -> np.ndarray:
        """See Backend.run. A batch with sampled rows (temperature > 0) runs step by step and is sampled on the host."""
        loaded = self._program(program)
        batch.check(self.bundle.limits, loaded.record.rows, loaded.record.samples, n_steps)
        if not batch.temperature.any():
            self._launch(program, batch, n_steps)
            return self._out[:n_steps, : batch.n_samples].get()
        picked = np.zeros((n_steps, batch.n_samples), np.int32)
        tokens, positions = batch.tokens.copy(), batch.positions.copy()
        for e in range(n_steps):
            live = StepBatch(
                tokens,
                positions,
                batch.slots,
                batch.sample_rows,
                batch.page_table,
                batch.temperature,
                batch.top_k,
                batch.top_p,
                batch.min_p,
                batch.seed,
            )
            self._launch(program, live, 1)
            logits = self.logits(program, batch.n_samples)
            for s, row in enumerate(batch.sample_rows):
                picked[e, s] = sample(
                    logits[s],
                    float(batch.temperature[s]),
                    int(batch.top_k[s]),
                    float(batch.top_p[s]),
                    float(batch.min_p[s]),
                    int(batch.seed[s]),
                    int(positions[row]),
                )
            if n_steps > 1:
                tokens, positions = picked[e].copy(), positions + np.int32(1)
        return picked

    def logits(self, program: int, n_samples: int) -> np.ndarray:
        """f32 [n_samples, vocab]: of the last step; see Backend.logits."""
        record = self._program(program).record
        vocab = self.bundle.limits.vocab_size
        found = np.empty((n_samples, vocab), np.float32)
        for s, row in enumerate(self._sample_rows[:n_samples]):
            at = record.logits_offset + 4 * int(row) * record.logits_stride
            found[s] = self._arena[at : at + 4 * vocab].view(self.cp.float32).get()
        return found

    def time_steps(self, program: int, batch: StepBatch, n_steps: int) -> float:
        """Milliseconds a step: one launch of n_steps between two events, after a short launch."""
        cp = self.cp
        self._launch(program, batch, min(5, n_steps))
        begin, end = cp.cuda.Event(), cp.cuda.Event()
        self._launch(program, batch, n_steps, events=(begin, end))
        return float(cp.cuda.get_elapsed_time(begin, end)) / n_steps

    def trace(self, program: int, batch: StepBatch, n_steps: int = 3) -> np.ndarray:
        """u64 [workers, max_packets, 4]: nanoseconds at start, inputs ready, done, published of each packet of the last
        step; 0 where a packet has no such point."""
        loaded = self._program(program)
        found = self.cp.zeros((self.workers, loaded.max_packets, 4), self.cp.uint64)
        self._launch(program, batch, n_steps, trace=found)
        return found.get()

    def close(self) -> None:
        self._programs.clear()
        self._arena = self._both_copies = None

    def _program(self, index: int) -> _Program:
        records = self.bundle.packets.programs
        if not 0 <= index < len(records):
            raise RequestError(f"no program {index}", str(self.bundle.path), f"use 0..{len(records) - 1}")
        if index not in self._programs:
            cp, record = self.cp, records[index]
            longest = max(len(x) for x in record.lists)
            table = np.zeros((len(record.lists), longest), PACKET)
            for w, packets in enumerate(record.lists):
                table[w, : len(packets)] = packets
            raw = table.view(np.uint8).reshape(-1)
            assert raw.size == table.size * PACKET_BYTES
            self._programs[index] = _Program(
                record,
                cp.asarray(raw),
                cp.asarray([len(x) for x in record.lists], cp.uint32),
                cp.zeros(record.num_counters * COUNTER_WORDS, cp.uint32),
                longest,
                self._kernel(record),
            )
        return self._programs[index]

    def _kernel(self, record: ProgramRecord) -> Any:
        """The build of the interpreter for the program's columns and head size."""
        packets = np.concatenate(record.lists)
        heads = [decode(p) for p in packets[packets["opcode"] == Opcode.STREAM_ATTENTION][:1]]
        dims = heads[0].dims if heads else {"cols": 1 if record.rows == 1 else STREAM_COLUMNS, "head_dim": 64}
        kernel = self._module.get_function(f"plow_interp_c{dims['cols']}_d{dims['head_dim']}")
        kernel.max_dynamic_shared_size_bytes = self.shared
        return kernel

    def _launch(
        self, program: int, batch: StepBatch, n_steps: int, events: tuple[Any, Any] | None = None, trace: Any = None
    ) -> None:
        if self.lost:
            raise DeviceError("the device context is lost", self.lost, "start a fresh process")
        cp, loaded = self.cp, self._program(program)
        if len(self._out) < n_steps:
            self._out = cp.zeros((n_steps, STREAM_COLUMNS), cp.int32)
        if self._known_pages is None or not np.array_equal(self._known_pages, batch.page_table):
            self._known_pages = batch.page_table.copy()
            self._page_table.set(np.maximum(self._known_pages, 0))
        p = np.zeros((), PARAMS)
        p["packets"], p["counts"], p["counters"] = (
            loaded.packets.data.ptr,
            loaded.counts.data.ptr,
            loaded.counters.data.ptr,
        )
        p["arena"], p["page_table"], p["out_tokens"] = (
            self._arena.data.ptr,
            self._page_table.data.ptr,
            self._out.data.ptr,
        )
        p["diag"] = self._pinned.ptr
        p["trace"] = 0 if trace is None else trace.data.ptr
        p["published_offset"], p["published_bytes"] = self.published, self.bundle.packets.header["published_bytes"]
        p["max_packets"], p["workers"], p["blocks_per_seq"] = (
            loaded.max_packets,
            self.workers,
            self.bundle.limits.blocks_per_seq,
        )
        p["n_steps"], p["step_base"], p["flags"], p["inflight"] = n_steps, loaded.steps, self.flags, self.inflight
        rows_of(p, batch)
        self._sample_rows = batch.sample_rows.copy()
        self._diag[:] = 0
        try:
            self._both_copies.fill(0xFF)
            if events:
                events[0].record()
            loaded.kernel((self.workers,), (self.threads,), (p[()],), shared_mem=self.shared)
            if events:
                events[1].record()
            cp.cuda.get_current_stream().synchronize()
        except cp.cuda.driver.CUDADriverError as e:
            self._fail(program, e)
        except cp.cuda.runtime.CUDARuntimeError as e:
            self._fail(program, e)
        loaded.steps += n_steps

    def _fail(self, program: int, error: Exception) -> None:
        error_text = str(error)
        self.lost = error_text
        if self._diag[0]:
            raise stuck(self.bundle.packets, program, self._diag) from error
        raise DeviceError(f"the launch failed: {error_text}", f"program {program}", "start a fresh process") from error

"""The resident kernel as the host sees it: jobs go in through a ring in mapped memory, tokens and "finished" come back.

The kernel stays on the SMs between calls and leaves after IDLE_US without one; it is launched again when there is work,
or when a job needs another build or other settings (kernels/cuda/resident.cuh has the protocol). One Resident a device
executes programs of all bundles that the process has loaded.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from plow.errors import PlowError, RequestError
from plow.packet.abi import STREAM_COLUMNS
from plow.runtime.cuda_device import DeviceError, Kernel, failures, words
from plow.runtime.cuda_params import (
    COUNTER_WORDS,
    JOB_RING,
    JOB_WORDS,
    PARAMS,
    REPORT_FINISHED,
    REPORT_LEAVE,
    REPORT_LEFT,
    REPORT_WORDS,
)
from plow.runtime.cuda_stuck import DIAG_NOTES, DIAG_WARPS, DIAG_WORDS

INFLIGHT = 5
"""Ring stages of 16 KiB that a worker keeps in flight: more only delays polls."""
IDLE_US = 20_000
MAX_STEPS = 1024
"""Of one job."""
NUM_COUNTERS = 8
LOOK_S = 0.02
"""How often a waiting host asks CUDA whether the kernel still runs."""
SPIN_S = 5e-3
"""How long a job is looked at without a pause, at least: a pause lasts longer than the look."""
NAP_S = 1e-3
"""Jobs that take longer are waited for asleep at first."""
NOTES_S = 0.2
"""From the first note of a late wait to the look at what is missing: by then nothing moves."""
NOT_READY = 600
"""cudaErrorNotReady: the stream still works."""
SILENCE_S = 10.0
"""After so long without a word the device is given up; its own waits end in about a second."""


class Stopped(PlowError):
    """The kernel stopped itself: a wait ran into its limit. diag: u64 words with the notes of its warps."""

    exit_code = 1

    def __init__(self, diag: np.ndarray) -> None:
        super().__init__("a wait on the device ran into its limit", "resident kernel")
        self.diag = diag


@dataclass(frozen=True)
class Settings:
    """What holds for a whole launch. flags: diagnosis switches of params.h; trace: device address or 0."""

    kernel: Kernel
    flags: int = 0
    inflight: int = INFLIGHT
    trace: int = 0


class Resident:
    """launches: how often the kernel was started. Thread-safe; one job runs at a time.

    Every method raises DeviceError when CUDA fails, which no process survives; `run` also Stopped, after which the next
    job is good, whoever posts it.
    """

    def __init__(self, cp: Any, workers: int) -> None:
        self.cp, self.workers = cp, workers
        self.launches = 0
        self._failures = failures(cp)
        self._lock = threading.Lock()
        self._stream = cp.cuda.Stream(non_blocking=True)
        sizes = (JOB_RING * JOB_WORDS * 4, 8 * REPORT_WORDS, 8 * (DIAG_NOTES + workers * DIAG_WARPS * DIAG_WORDS),
                 4 * MAX_STEPS * STREAM_COLUMNS)  # fmt: skip
        self._pinned = [cp.cuda.alloc_pinned_memory(n) for n in sizes]
        ring, report, diag, out = (
            np.frombuffer(m, t, n // np.dtype(t).itemsize)
            for m, t, n in zip(self._pinned, (np.uint32, np.uint64, np.uint64, np.int32), sizes, strict=True)
        )
        self._ring, self._report, self._diag = ring.reshape(JOB_RING, JOB_WORDS), report, diag
        self._out = out.reshape(MAX_STEPS, STREAM_COLUMNS)
        for array in (ring, report, diag):
            array[:] = 0
        self._jobs = cp.zeros(JOB_RING * JOB_WORDS, cp.uint32)
        self._board = cp.zeros(2 * COUNTER_WORDS, cp.uint32)
        self._counters = cp.zeros(NUM_COUNTERS * COUNTER_WORDS, cp.uint32)
        cp.cuda.get_current_stream().synchronize()
        self._posted = 0
        self._steps = 0
        self._running: Settings | None = None
        self._expected_s: dict[tuple[int, int], float] = {}
        self._nap = 0.8
        """Part of a job's expected time that a host sleeps: less where sleeps last longer than asked for."""

    def run(
        self,
        settings: Settings,
        job: np.ndarray,
        events: tuple[Any, Any] | None = None,
        late: Callable[[], None] = lambda: None,
    ) -> np.ndarray:
        """Carry out a JOB scalar and wait for it; returns i32 [n_steps, STREAM_COLUMNS], tokens by sample (-1: none).

        events: recorded around a launch of its own, which does nothing else. late: called once when warps have waited
        so long that they will stop the kernel: its data can still be looked at.
        """
        n_steps, n_samples = int(job["n_steps"]), int((job["sample_index"] >= 0).sum())
        if not 1 <= n_steps <= MAX_STEPS:
            raise RequestError(f"{n_steps} steps in one job", "resident kernel", f"use 1..{MAX_STEPS}")
        with self._lock:
            if events or settings != self._running or self._has_left():
                self._leave()
            out = self._out[:n_steps]
            out[:] = -1
            job["step_base"], job["out_tokens"] = self._steps & 0xFFFFFFFF, self._pinned[3].ptr
            self._post(job)
            if events or self._running is None:
                self._launch(settings, events)
            self._wait(int(job["packets"]), n_steps, out[:, :n_samples], late)
            self._steps += n_steps
            if events:
                self._until_left()
            return out.copy()

    def leave(self) -> None:
        """Let the SMs go now, for whoever else wants them."""
        with self._lock:
            self._leave()

    # -- the protocol --------------------------------------------------------------------------------------------------
    def _post(self, job: np.ndarray) -> None:
        slot = self._ring[self._posted % JOB_RING]
        slot[:-1] = np.atleast_1d(job).view(np.uint32)[:-1]
        self._posted += 1
        slot[-1] = self._posted & 0xFFFFFFFF

    def _launch(self, settings: Settings, events: tuple[Any, Any] | None) -> None:
        p = np.zeros((), PARAMS)
        ring, report, diag, _ = (m.ptr for m in self._pinned)
        self.launches += 1
        p["posted"], p["report"], p["diag"] = ring, report, diag
        p["jobs"], p["board"], p["counters"] = (a.data.ptr for a in (self._jobs, self._board, self._counters))
        p["workers"], p["launch"], p["idle_us"] = self.workers, self.launches, IDLE_US
        p["first_job"] = (self._posted - 1) & 0xFFFFFFFF
        p["flags"], p["inflight"], p["trace"] = settings.flags, settings.inflight, settings.trace
        self._diag[:] = 0
        self._report[REPORT_LEAVE] = self.launches if events else 0
        with self._cuda("launch"), self._stream:
            self.cp.cuda.runtime.memsetAsync(self._board.data.ptr, 0, self._board.nbytes, self._stream.ptr)
            if events:
                events[0].record(self._stream)
            settings.kernel.launch(p)
            if events:
                events[1].record(self._stream)
        self._running = settings

    def _wait(self, program: int, n_steps: int, tokens: np.ndarray, late: Callable[[], None]) -> None:
        """Until the job that was posted last has finished and its tokens have arrived. Sleeps through most of the time
        that such a job took before, then looks again and again."""
        start = time.perf_counter()
        look, noted = start + LOOK_S, 0.0
        expected = self._expected_s.get((program, n_steps), 0.0)
        spin = start + max(2 * expected, SPIN_S)
        if expected > NAP_S:
            time.sleep(self._nap * expected)
            overslept = int(self._report[REPORT_FINISHED]) >= self._posted
            self._nap = max(0.0, self._nap - 0.1) if overslept else min(0.9, self._nap + 0.01)
        while not (int(self._report[REPORT_FINISHED]) >= self._posted and (tokens >= 0).all()):
            now = time.perf_counter()
            if now > look:
                self._look(now - start)
                look = now + LOOK_S
                if not noted and self._diag[DIAG_NOTES::DIAG_WORDS].any():
                    noted = now
                elif noted and now - noted > NOTES_S:
                    late()
                    noted = float("inf")
            elif self._diag[0]:
                self._stopped()
            elif self._has_left() and int(self._report[REPORT_FINISHED]) < self._posted:
                self._again()
            if now > spin:
                time.sleep(1e-4)
        took = time.perf_counter() - start
        self._expected_s[program, n_steps] = min(took, 1.5 * expected) if expected else took

    def _again(self) -> None:
        """The kernel left when the job was on its way."""
        settings = self._running
        self._until_left()
        if settings is not None:
            self._launch(settings, None)

    def _look(self, waited: float) -> None:
        """Whether CUDA still runs the kernel. Raises Stopped, DeviceError."""
        status = self.cp.cuda.runtime.streamQuery(self._stream.ptr)
        if self._diag[0]:
            self._stopped()
        if status == 0 and not self._has_left():
            raise DeviceError("the kernel ended by itself", "resident kernel", "report this")
        if status not in (0, NOT_READY):
            with self._cuda("run"):
                self._stream.synchronize()
        if waited > SILENCE_S:
            raise DeviceError(f"no word from the device for {waited:.0f} s", "resident kernel", "check nvidia-smi")

    def _stopped(self) -> None:
        self._until_left()  # the notes of all warps have arrived
        self._steps = 0  # some workers have counted the step that stopped
        self.cp.cuda.runtime.memset(self._counters.data.ptr, 0, self._counters.nbytes)
        raise Stopped(self._diag.copy())

    def _has_left(self) -> bool:
        return int(self._report[REPORT_LEFT]) == self.launches

    def _leave(self) -> None:
        if self._running is None:
            return
        self._report[REPORT_LEAVE] = self.launches
        self._until_left()

    def _until_left(self) -> None:
        with self._cuda("leave"):
            self._stream.synchronize()
        self._running = None

    @contextmanager
    def _cuda(self, where: str) -> Iterator[None]:
        """CUDA's errors in the block as DeviceError."""
        try:
            yield
        except self._failures as e:
            raise DeviceError(f"the device failed: {words(e)}", where, "start a fresh process") from e


_residents: dict[tuple[Any, int], Resident] = {}


def resident(cp: Any, workers: int) -> Resident:
    """The one for bundles of so many workers; others wait until it has left."""
    key = cp, workers
    if key not in _residents:
        _residents[key] = Resident(cp, workers)
    return _residents[key]

"""NumpyBackend: the readable interpreter of packet programs, the oracle of every other backend.

Workers are interleaved packet by packet. A packet runs only when its waits are met, and any runnable worker may be the
next one: an adversarial order makes a missing wait show as a wrong result. A STREAM packet pauses wherever it polls and
goes on when the words are written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from plow.errors import PlowError, RequestError, StuckDependency
from plow.packet.abi import STEP_COUNTER, Opcode
from plow.packet.codec import Packet, decode
from plow.packet.container import ProgramRecord
from plow.runtime import numpy_ops, numpy_stream
from plow.runtime.bundle import Bundle
from plow.runtime.numpy_ops import State
from plow.runtime.numpy_published import Need, StreamState, stuck_published
from plow.runtime.step import StepBatch
from plow.runtime.stuck import stuck_dependency

Choose = Callable[[list[int]], int]
"""Picks the next worker among those that can run."""
BF16_NAN = 0x7FC0
EXECUTE: Mapping[Opcode, Callable[[Any, Packet], Iterator[list[Need]] | None]] = {
    **numpy_ops.EXECUTE,
    **numpy_stream.EXECUTE,
}


class _Program:
    """Counters and step number of one program; both live across steps."""

    def __init__(self, record: ProgramRecord) -> None:
        self.record = record
        self.lists: list[list[Packet]] = [[decode(r) for r in packets] for packets in record.lists]
        self.reset()

    def reset(self) -> None:
        self.counters = [0] * self.record.num_counters
        self.step = 0

    def want(self, counter: int, threshold: int) -> int:
        """Counter value that meets a wait in the current step (from 1)."""
        base_step = self.step - 1 - (counter == STEP_COUNTER)
        return base_step * self.record.counter_totals[counter] + threshold

    def unmet(self, packet: Packet) -> tuple[int, int] | None:
        """(counter, value wanted) of the first wait that is not met."""
        for counter, threshold in packet.waits:
            want = self.want(counter, threshold)
            if self.counters[counter] < want:
                return counter, want
        return None


class _Worker:
    """A worker's walk over its list in one step. at: its packet; polls: what the packet, once begun, waits for."""

    def __init__(self, packets: list[Packet]) -> None:
        self.packets, self.at = packets, 0
        self._begun: Iterator[list[Need]] | None = None
        self._polls: list[Need] = []

    @property
    def packet(self) -> Packet:
        return self.packets[self.at]

    def blocked(self, prog: _Program) -> tuple[int, int] | Need | None:
        """The first counter and value, or the first polled words, that are not there."""
        if self._begun is None:
            return prog.unmet(self.packet)
        return next((need for need in self._polls if not need.met()), None)

    def go(self, prog: _Program, state: State) -> None:
        """Run the packet up to its end or to the next words that it polls."""
        packet = self.packet
        if self._begun is None:
            self._begun = EXECUTE[packet.opcode](state, packet) or iter(())
        polls = next(self._begun, None)
        if polls is not None:
            self._polls = polls
            return
        if isinstance(state, StreamState):
            state.ended(packet)
        for counter in packet.signals:
            prog.counters[counter] += 1
        self.at, self._begun = self.at + 1, None


class NumpyBackend:
    """Readable and slow. order: "round_robin", "random:<seed>", "first_first" or "last_first" (the lowest or highest
    runnable worker runs until it blocks). poison: activations are NaN before every step and KV is NaN at the start.
    split_pages: pages that a part of STREAM attention has at least."""

    def __init__(self, bundle: Bundle, order: str = "round_robin", poison: bool = False,
                 split_pages: int = numpy_stream.SPLIT_PAGES) -> None:
        self.bundle = bundle
        self.poison = poison
        self.split_pages = split_pages
        self.streams = "published" in bundle.segments
        self._logit_rows: np.ndarray | None = None
        self.arena = np.zeros(bundle.arena_bytes, np.uint8)
        image = bundle.weights()
        self.arena[:len(image)] = image
        self._choose = _order(order)
        self._programs: dict[int, _Program] = {}
        if poison:
            self._fill_nan("kv")

    def run(self, program: int, batch: StepBatch, n_steps: int = 1) -> np.ndarray:
        prog = self._program(program)
        batch.check(self.bundle.limits, prog.record.rows, prog.record.samples, n_steps)
        live = replace(batch, tokens=batch.tokens.copy(), positions=batch.positions.copy())
        out = np.zeros((n_steps, batch.n_samples), np.int32)
        if self.streams:
            offset, size = self.bundle.segments["published"]
            self.arena[offset:offset + size] = 0xFF
            self._logit_rows = batch.sample_rows.copy()
        for e in range(n_steps):
            if self.streams:
                state: State = self._stream_state(prog, live, out[e], e)
            else:
                state = State(self.arena, self.bundle.limits, live, out[e], advance=n_steps > 1)
            try:
                self._step(program, prog, state)
            except PlowError:
                prog.reset()
                raise
        return out

    def _stream_state(self, prog: _Program, batch: StepBatch, picked: np.ndarray, e: int) -> StreamState:
        """Step e of a call. Tokens are fed back through published words, so only positions move on."""
        moved = replace(batch, positions=batch.positions + np.int32(e))
        embeds = [p for packets in prog.lists for p in packets if p.opcode == Opcode.STREAM_EMBED]
        state = StreamState(
            self.arena, self.bundle.limits, moved, picked, copy_bytes=self.bundle.packets.header["published_bytes"],
            plain=self.bundle.segments["activations"], step=prog.step + 1, first=e == 0, split_pages=self.split_pages)
        if e:
            state.reads_other(embeds, "tokens")
        return state

    def logits(self, program: int, n_samples: int) -> np.ndarray:
        record = self.bundle.packets.programs[program]
        start, vocab = record.logits_offset, self.bundle.limits.vocab_size
        index = slice(n_samples) if self._logit_rows is None else self._logit_rows[:n_samples]
        end = n_samples if self._logit_rows is None else int(self._logit_rows.max(initial=-1)) + 1
        rows = self.arena[start:start + 4 * end * record.logits_stride].view(np.float32)
        return rows.reshape(end, record.logits_stride)[index, :vocab]

    steps_per_call = 1

    def recover(self) -> bool:
        """See Backend.recover: a stopped program is forgotten."""
        self._programs.clear()
        return True

    def close(self) -> None:
        self._programs.clear()

    def _program(self, index: int) -> _Program:
        if not 0 <= index < len(self.bundle.packets.programs):
            last = len(self.bundle.packets.programs) - 1
            raise RequestError(f"no program {index}", str(self.bundle.path), f"use 0..{last}")
        if index not in self._programs:
            self._programs[index] = _Program(self.bundle.packets.programs[index])
        return self._programs[index]

    def _step(self, index: int, prog: _Program, state: State) -> None:
        """Run every worker's list once. Raises StuckDependency when no worker can go on, or Race."""
        if self.poison:
            self._fill_nan("activations")
        prog.step += 1
        workers = [_Worker(packets) for packets in prog.lists]
        while pending := [w for w, worker in enumerate(workers) if worker.at < len(worker.packets)]:
            ready = [w for w in pending if workers[w].blocked(prog) is None]
            if not ready:
                raise self._stuck(index, prog, workers, pending)
            workers[self._choose(ready)].go(prog, state)

    def _stuck(self, index: int, prog: _Program, workers: list[_Worker], pending: list[int]) -> StuckDependency:
        # Waits point backwards in seq, so the first blocked packet is the cause and not a consequence.
        w = min(pending, key=lambda w: workers[w].packet.seq)
        at, missing = [worker.at for worker in workers], workers[w].blocked(prog)
        if isinstance(missing, Need):
            return stuck_published(self.bundle.packets, prog.lists, at, w, missing)
        counter, want = missing or (0, 0)
        return stuck_dependency(self.bundle.packets, index, w, at, counter, prog.counters[counter], want)

    def _fill_nan(self, segment: str) -> None:
        offset, size = self.bundle.segments.get(segment, (0, 0))
        words = self.arena[offset:offset + size]
        if self.streams and segment == "kv":
            words.view(np.uint16)[:] = BF16_NAN
        else:
            words.view(np.float32)[:] = np.nan


def _order(name: str) -> Choose:
    """Raises RequestError for an unknown name."""
    if name == "first_first":
        return min
    if name == "last_first":
        return max
    if name.startswith("random:") and name[7:].isdigit():
        rng = np.random.default_rng(int(name[7:]))
        return lambda ready: ready[int(rng.integers(len(ready)))]
    if name == "round_robin":
        last = -1

        def next_worker(ready: list[int]) -> int:
            nonlocal last
            last = next((w for w in ready if w > last), ready[0])
            return last
        return next_worker
    raise RequestError(f"unknown order {name!r}", "NumpyBackend",
                       "use round_robin, random:<seed>, first_first or last_first")

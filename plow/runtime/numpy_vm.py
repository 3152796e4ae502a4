"""NumpyBackend: the readable interpreter of packet programs, the oracle of every other backend.

Workers are interleaved packet by packet. A packet runs only when its waits are met, and any runnable worker may be the
next one: an adversarial order makes a missing wait show as a wrong result.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from plow.errors import RequestError
from plow.packet.abi import STEP_COUNTER
from plow.packet.codec import Packet, decode
from plow.packet.container import ProgramRecord
from plow.runtime.bundle import Bundle
from plow.runtime.numpy_ops import EXECUTE, State
from plow.runtime.step import StepBatch
from plow.runtime.stuck import stuck_dependency

Choose = Callable[[list[int]], int]
"""Picks the next worker among those that can run."""


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


class NumpyBackend:
    """Readable and slow. order: "round_robin", "random:<seed>", "first_first" or "last_first" (the lowest or highest
    runnable worker runs until it blocks). poison: activations are NaN before every step and KV is NaN at the start."""

    def __init__(self, bundle: Bundle, order: str = "round_robin", poison: bool = False) -> None:
        self.bundle = bundle
        self.poison = poison
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
        for e in range(n_steps):
            state = State(self.arena, self.bundle.limits, live, out[e], advance=n_steps > 1)
            self._step(program, prog, state)
        return out

    def logits(self, program: int, n_samples: int) -> np.ndarray:
        record = self.bundle.packets.programs[program]
        start, vocab = record.logits_offset, self.bundle.limits.vocab_size
        rows = self.arena[start:start + 4 * n_samples * record.logits_stride].view(np.float32)
        return rows.reshape(n_samples, record.logits_stride)[:, :vocab]

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
        """Run every worker's list once. Raises StuckDependency when no worker can go on; counters are then reset."""
        if self.poison:
            self._fill_nan("activations")
        prog.step += 1
        at = [0] * len(prog.lists)
        while pending := [w for w, packets in enumerate(prog.lists) if at[w] < len(packets)]:
            ready = [w for w in pending if prog.unmet(prog.lists[w][at[w]]) is None]
            if not ready:
                # Waits point backwards in seq, so the first blocked packet is the cause and not a consequence.
                worker = min(pending, key=lambda w: prog.lists[w][at[w]].seq)
                counter, want = prog.unmet(prog.lists[worker][at[worker]]) or (0, 0)
                error = stuck_dependency(self.bundle.packets, index, worker, at, counter, prog.counters[counter], want)
                prog.reset()
                raise error
            worker = self._choose(ready)
            packet = prog.lists[worker][at[worker]]
            EXECUTE[packet.opcode](state, packet)
            for counter in packet.signals:
                prog.counters[counter] += 1
            at[worker] += 1

    def _fill_nan(self, segment: str) -> None:
        offset, size = self.bundle.segments.get(segment, (0, 0))
        self.arena[offset:offset + size].view(np.float32)[:] = np.nan


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

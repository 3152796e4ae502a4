"""A small arena and hand-made packets: what the kernel tests run on."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from plow.packet.abi import ALIGN, KV_BLOCK, LANES
from plow.packet.codec import Packet, encode
from plow.packet.container import ProgramRecord
from plow.runtime.cpu_lib import Interpreter, LoadedProgram, StepBuffers, aligned
from plow.runtime.step import StepBatch

Lib = ctypes.CDLL
Rng = np.random.Generator
POISON = np.float32(1e30)
"""Value of bytes that no kernel may read or write."""


def stride(width: int) -> int:
    return width + -width % LANES


def bf16(x: np.ndarray) -> np.ndarray:
    """u16 bits of x rounded to nearest even."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def widen(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)


@dataclass
class Rig:
    """Allocates operands, runs packets, hands out views."""

    lib: ctypes.CDLL
    bytes: int = 1 << 24
    workers: int = 1
    arena: np.ndarray = field(init=False)
    used: int = 0

    def __post_init__(self) -> None:
        self.arena = aligned(self.bytes, np.uint8)

    def put(self, array: np.ndarray) -> int:
        """Copy an array into the arena; its byte offset."""
        offset = self.used
        self.used += array.nbytes + -array.nbytes % ALIGN + ALIGN
        assert self.used <= self.bytes, "the rig's arena is too small"
        self.arena[offset:offset + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        return offset

    def rows(self, x: np.ndarray) -> int:
        """Put f32 rows [n, width] with the ABI's stride; padding columns are zero."""
        padded = np.zeros((len(x), stride(x.shape[1])), np.float32)
        padded[:, :x.shape[1]] = x
        return self.put(padded)

    def empty(self, n: int, width: int) -> int:
        """Rows full of POISON."""
        return self.put(np.full((n, stride(width)), POISON, np.float32))

    def view(self, offset: int, n: int, width: int) -> np.ndarray:
        """f32 [n, stride]: rows with their padding."""
        size = n * stride(width) * 4
        return self.arena[offset:offset + size].view(np.float32).reshape(n, -1)

    def program(self, packets: list[Packet], totals: list[int] | None = None) -> LoadedProgram:
        for i, p in enumerate(packets):
            p.seq = i
        lists = [encode([p for p in packets if p.worker == w]) for w in range(self.workers)]
        return LoadedProgram(ProgramRecord(0, 0, totals or [0], lists, 0, 0))

    def interpreter(self, *programs: LoadedProgram, **options: Any) -> Interpreter:
        return Interpreter(self.lib, self.arena, list(programs), self.workers, **options)

    def run(self, packets: list[Packet], batch: StepBatch | None = None, n_steps: int = 1) -> np.ndarray:
        """Run packets once on one worker; what SAMPLE picked."""
        batch = batch or step(1)
        program = self.program(packets)
        picked = np.zeros((n_steps, max(1, batch.n_samples)), np.int32)
        buffers = StepBuffers(batch.n_rows, batch.n_samples, batch.page_table.shape[1])
        interpreter = self.interpreter(program)
        try:
            assert interpreter.run(program, buffers.fill(batch, n_steps, picked)) == 0
        finally:
            interpreter.close()
        return picked


def step(n_rows: int, n_samples: int = 0, positions: Any = None, slots: Any = None, pages: np.ndarray | None = None,
         **sampling: Any) -> StepBatch:
    """A batch of rows of one sequence at positions 0.., greedy."""
    positions = np.arange(n_rows) if positions is None else positions
    slots = np.zeros(n_rows, np.int32) if slots is None else slots
    batch = StepBatch.greedy(np.arange(n_rows), positions, slots, np.arange(n_samples),
                             np.zeros((1, 1), np.int32) if pages is None else pages)
    for name, values in sampling.items():
        setattr(batch, name, np.broadcast_to(np.asarray(values, getattr(batch, name).dtype), n_samples).copy())
    return batch


def page_table(rng: np.random.Generator, slots: int, context: int) -> np.ndarray:
    """Blocks of every slot in a random order: nothing may rely on neighbouring blocks."""
    per_slot = -(-context // KV_BLOCK)
    return rng.permutation(slots * per_slot).astype(np.int32).reshape(slots, per_slot)

"""A backend with sequences in scattered KV blocks: prefill, decode and read values back by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from plow.packet.codec import Packet
from plow.runtime.step import Backend, StepBatch
from stages.s5_block.probes import fill_nan, packet_of, read_kv, read_rows
from stages.s5_block.subject import MAX_BATCH, Subject

Observed = dict[str, np.ndarray]
"""Value name -> f32 [rows, features]."""


@dataclass
class Rows:
    """Rows of a step: which sequence and which position each of them is."""

    slots: np.ndarray
    positions: np.ndarray


class Rig:
    """prefixes: (program, node) -> the program that stops after the node. All sequences hold `tokens` of their slot."""

    def __init__(self, s: Subject, backend: Backend, prefixes: dict[tuple[int, int], int], tokens: np.ndarray) -> None:
        self.s, self.backend, self.prefixes, self.tokens = s, backend, prefixes, tokens
        self.records = s.bundle.packets.programs
        limits = s.bundle.limits
        blocks = np.random.default_rng(s.seed + 1).permutation(limits.num_kv_blocks).astype(np.int32)
        self.page_table = blocks[: limits.max_slots * limits.blocks_per_seq].reshape(
            limits.max_slots, limits.blocks_per_seq
        )
        fill_nan(backend, "kv")
        self.filled = [0] * MAX_BATCH
        self._packets: dict[tuple[int, int], Packet] = {}

    def program(self, rows: int) -> int:
        """The smallest program with so many rows."""
        return next(i for i, r in enumerate(self.records) if r.rows >= rows)

    def run(self, program: int, rows: Rows, sampled: Sequence[int]) -> np.ndarray:
        """One step on poisoned activations; f32 [len(sampled), vocab]."""
        fill_nan(self.backend, "activations")
        tokens = self.tokens[rows.slots, rows.positions]
        self.backend.run(program, StepBatch.greedy(tokens, rows.positions, rows.slots, list(sampled), self.page_table))
        return self.backend.logits(program, len(sampled)).copy()

    def decode(self, slots: Sequence[int], context: int) -> np.ndarray:
        """The row at position context - 1 of each slot, in the program of that batch: f32 [len(slots), vocab]."""
        return self.run(self.program(len(slots)), at(slots, context), range(len(slots)))

    def prefill(self, slot: int, end: int, chunks: Sequence[int]) -> np.ndarray | None:
        """Positions up to `end`, in chunks of the given sizes (the last one repeats); logits of the last position."""
        logits = None
        sizes = list(chunks)
        while self.filled[slot] < end:
            n = min(sizes[0], end - self.filled[slot])
            sizes = sizes[1:] or sizes
            rows = Rows(np.full(n, slot, np.int32), np.arange(self.filled[slot], self.filled[slot] + n, dtype=np.int32))
            logits = self.run(self.program(n), rows, [n - 1])
            self.filled[slot] += n
        return logits

    def observe(self, program: int, rows: Rows) -> Observed:
        """Every operator's result in this step, by the value's name; keys and values as "<cache>.k" and "<cache>.v"."""
        seen: Observed = {}
        count = min(len(rows.slots), self.records[program].samples)
        for i, node in enumerate(self.s.fused.nodes):
            p = self.packet(program, i)
            self.run(self.prefixes[program, i], rows, range(count))
            if "y" in p.operands:
                value = node.outputs[0]
                n = count if self.s.fused.types[value].shape[0] == "S" else len(rows.slots)
                seen[value] = read_rows(self.backend, p, int(self.s.fused.types[value].shape[-1]), n)
            if "cache" in node.attrs:
                keys, values = self.kv(program, i, rows)
                seen |= {f"{node.attrs['cache']}.k": keys, f"{node.attrs['cache']}.v": values}
        return seen

    def kv(self, program: int, node: int, rows: Rows) -> tuple[np.ndarray, np.ndarray]:
        """Keys and values of the rows' own positions."""
        p = self.packet(program, node)
        found = [
            read_kv(self.backend, p, self.page_table[s], np.array([t]))
            for s, t in zip(rows.slots, rows.positions, strict=True)
        ]
        return np.concatenate([k for k, _ in found]), np.concatenate([v for _, v in found])

    def whole_kv(self, slot: int, length: int) -> list[np.ndarray]:
        """Keys and values of all caches for the first positions of a sequence."""
        caches = [i for i, n in enumerate(self.s.fused.nodes) if "cache" in n.attrs]
        return [
            x
            for i in caches
            for x in read_kv(self.backend, self.packet(0, i), self.page_table[slot], np.arange(length))
        ]

    def packet(self, program: int, node: int) -> Packet:
        if (program, node) not in self._packets:
            self._packets[program, node] = packet_of(self.records[program], node)
        return self._packets[program, node]


def at(slots: Sequence[int], context: int) -> Rows:
    return Rows(np.array(slots, np.int32), np.full(len(slots), context - 1, np.int32))

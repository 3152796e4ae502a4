"""The memory of a STREAM step in the numpy interpreter: published words, owned states, and what may go wrong with both.

Every access is checked. A published word is written once a step, is read only when it is written, and is re-armed only
when its readers have ended; a state belongs to one worker for the whole step. What breaks this is a Race: a program
that would give different results in another order of its workers.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import ml_dtypes
import numpy as np

from plow.errors import PlowError, StuckDependency
from plow.packet.abi import OPCODES, STREAM_CHUNK, STREAM_COLUMNS, STREAM_TILE, Opcode
from plow.packet.codec import Packet
from plow.packet.container import PacketFile
from plow.runtime.numpy_ops import State

Array = np.ndarray
T = TypeVar("T")
BROKEN = "the packet program is wrong: check it with plowc disasm"
WRITES = {op: {n for n, (mode, _) in spec.operands.items() if "w" in mode} for op, spec in OPCODES.items()}
TILE_WORDS = STREAM_TILE * STREAM_COLUMNS
"""f32 of a tile of a state, for one column as for eight."""


class Race(PlowError):
    """A packet reads, overwrites or re-arms a word at a time that the program does not allow."""

    exit_code = 1


@dataclass
class Need:
    """Words that a packet polls: view of the arena, u32 or u64 (keys); all of them must be written."""

    operand: str
    words: Array
    missing: tuple[int, ...] | None = None
    """A word that was not there when it was looked at last."""
    done: bool = False

    def met(self) -> bool:
        """True once every word is written. Cheap while the same word is missing."""
        unwritten = ones(self.words)
        if self.done or (self.missing is not None and self.words[self.missing] == unwritten):
            return self.done
        absent = self.words == unwritten
        self.done = not absent.any()
        if not self.done:
            self.missing = tuple(int(i) for i in np.unravel_index(int(absent.argmax()), absent.shape))
        return self.done


Polling = Generator[list[Need], None, T]
"""A packet in execution: gives what it polls, and is resumed when all of it is written."""


def ones(words: Array) -> Any:
    """UNWRITTEN in the dtype of the words."""
    return words.dtype.type(np.iinfo(words.dtype).max)


def bf16_bits(x: Array) -> Array:
    """f32 -> u16 bits of the nearest bf16."""
    return np.ascontiguousarray(x, np.float32).astype(ml_dtypes.bfloat16).view(np.uint16)


def widen(bits: Array) -> Array:
    """u16 bits of bf16 -> f32."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


@dataclass
class StreamState(State):
    """A step of a STREAM program; batch holds this step's positions and is not changed.

    copy_bytes: of a copy of the published segment; plain: (offset, bytes) of states and logits; step: from 1, its
    parity names the copy; first: of its call; split_pages: pages that a part of attention has at least.
    """

    copy_bytes: int = 0
    plain: tuple[int, int] = (0, 0)
    step: int = 1
    first: bool = True
    split_pages: int = 1
    owner: Array = field(default_factory=lambda: np.zeros(0, np.int32))
    """For each word of the plain segment: worker + 1 that wrote it in this step, or 0."""
    readers: dict[int, int] = field(default_factory=dict)
    """Address of a published buffer -> packets that have yet to read it in the *other* copy."""

    def __post_init__(self) -> None:
        self.owner = np.zeros(self.plain[1] // 4, np.int32)

    def reads_other(self, packets: Sequence[Packet], operand: str) -> None:
        """These packets will read an operand in the other copy: nobody may re-arm it before."""
        for p in packets:
            self.readers[p.operands[operand]] = self.readers.get(p.operands[operand], 0) + 1

    def ended(self, p: Packet) -> None:
        """Called when a packet has ended."""
        if p.opcode == Opcode.STREAM_EMBED and not self.first:
            self.readers[p.operands["tokens"]] -= 1

    # -- published -----------------------------------------------------------------------------------------------------
    def published(self, p: Packet, operand: str, dtype: type, *shape: int, other: bool = False) -> Array:
        """View of this step's copy of a buffer, or of the other one."""
        copy = (self.step + other) & 1
        return self.array(p.operands[operand] + copy * self.copy_bytes, dtype, *shape)

    def poll(self, p: Packet, operand: str, words: Array) -> Polling[Array]:
        """Wait for words and return a copy of them."""
        need = Need(operand, words)
        yield [need]
        if (words == ones(words)).any():
            raise Race(f"{operand} was re-armed before it was read", place(p), BROKEN)
        return words.copy()

    def put(self, p: Packet, operand: str, shape: tuple[int, ...], index: Any, values: Array, active: Any) -> None:
        """Publish values[active] at [index] of a buffer, and re-arm [index] of its other copy. values: u32 or u64."""
        this, other = (self.published(p, operand, values.dtype.type, *shape, other=o) for o in (False, True))
        unwritten, old, active = ones(values), this[index], np.broadcast_to(active, values.shape)
        if (old[active] != unwritten).any():
            raise Race(f"{operand} is written twice, or was not re-armed", place(p), BROKEN)
        if (values[active] == unwritten).any():
            raise Race(f"a value of {operand} has the bits of a word that is not written", place(p), BROKEN)
        if self.readers.get(p.operands[operand]):
            raise Race(f"{operand} is re-armed while it is still to be read", place(p), BROKEN)
        this[index] = np.where(active, values, old)
        other[index] = unwritten

    @property
    def active(self) -> Array:
        """bool [8]: columns that hold a row of this step."""
        return np.arange(STREAM_COLUMNS) < self.batch.n_rows

    def columns(self, p: Packet) -> Array:
        """bool [cols]."""
        return self.active[: p.dims["cols"]]

    def vec(self, p: Packet, operand: str, k: int) -> Polling[Array]:
        """f32 [cols, k] of a vec; columns without a row are 0."""
        cols, n = p.dims["cols"], self.batch.n_rows
        words = self.published(p, operand, np.uint32, k // STREAM_CHUNK, cols, STREAM_CHUNK // 2)
        found = yield from self.poll(p, operand, words[:, :n])
        x = np.zeros((cols, k), np.float32)
        x[:n] = widen(found.transpose(1, 0, 2).reshape(n, k // 2).view(np.uint16))
        return x

    def put_vec(self, p: Packet, operand: str, first: int, x: Array, column: int | None = None) -> None:
        """Publish f32 x: [cols, features], or [features] of one column, from feature `first` (even) on."""
        word = np.arange(first // 2, (first + x.shape[-1]) // 2)
        chunk, at = word // (STREAM_CHUNK // 2), word % (STREAM_CHUNK // 2)
        shape = (int(chunk[-1]) + 1, p.dims["cols"], STREAM_CHUNK // 2)
        words = bf16_bits(x).view(np.uint32)
        if column is None:
            self.put(p, operand, shape, (chunk, slice(None), at), words.T, self.columns(p))
        else:
            self.put(p, operand, shape, (chunk, column, at), words, True)

    def norm_factor(self, p: Packet, operand: str = "ssq") -> Polling[Array]:
        """f32 [cols, 1]: 1 / sqrt(mean square + eps) from the sums of squares; 1 without them."""
        cols, n, k = p.dims["cols"], self.batch.n_rows, p.dims["k"]
        factor = np.ones((cols, 1), np.float32)
        if operand in p.operands:
            words = self.published(p, operand, np.uint32, k // STREAM_TILE, cols)
            found = yield from self.poll(p, operand, words[:, :n])
            sums = np.ascontiguousarray(found.T).view(np.float32).sum(axis=1, dtype=np.float32)
            factor[:n, 0] = 1 / np.sqrt(sums / np.float32(k) + np.float32(p.imms["eps"]))
        return factor

    # -- plain ---------------------------------------------------------------------------------------------------------
    def _tiles(self, p: Packet, operand: str) -> tuple[Array, slice]:
        """The packet's tiles of a state as [column / 2, column % 2, tile, row / 8, row % 8], and their words."""
        first, end = p.dims["tile0"], p.dims["tile1"]
        at = p.operands[operand] + first * TILE_WORDS * 4
        tiles = self.array(at, np.float32, end - first, 8, STREAM_COLUMNS // 2, 2, 2)
        start = (at - self.plain[0]) // 4
        return tiles.transpose(2, 4, 0, 3, 1), slice(start, start + (end - first) * TILE_WORDS)

    def state(self, p: Packet, operand: str) -> Array:
        """f32 [cols, features] of the packet's tiles."""
        view, words = self._tiles(p, operand)
        if (self.owner[words] != p.worker + 1).any():
            raise Race(f"{operand} was not written by this worker in this step", place(p), BROKEN)
        return view.reshape(STREAM_COLUMNS, -1)[: p.dims["cols"]]

    def put_state(self, p: Packet, operand: str, x: Array) -> None:
        """x: [cols, features] of the packet's tiles."""
        view, words = self._tiles(p, operand)
        self._own(p, operand, self.owner[words])
        if p.dims["cols"] == 1:
            view[0, 0] = x[0].reshape(view.shape[2:])
        else:
            view[...] = x.reshape(view.shape)

    def put_logits(self, p: Packet, x: Array) -> None:
        """x: [rows of the step, features of the packet's tiles]."""
        cols, stride, first = p.dims["cols"], p.dims["logits_stride"], p.dims["tile0"] * STREAM_TILE
        part = slice(first, first + x.shape[1])
        self.array(p.operands["logits"], np.float32, cols, stride)[: len(x), part] = x
        start = (p.operands["logits"] - self.plain[0]) // 4
        for row in range(len(x)):
            self._own(p, "logits", self.owner[start + row * stride :][part])

    def logits(self, p: Packet, row: int) -> Array:
        """f32 [vocab] of a row."""
        stride, vocab = p.dims["logits_stride"], p.dims["vocab"]
        start = (p.operands["logits"] - self.plain[0]) // 4 + row * stride
        if not self.owner[start : start + vocab].all():
            raise Race("logits are read before they are written", place(p), BROKEN)
        return self.array(p.operands["logits"], np.float32, p.dims["cols"], stride)[row, :vocab]

    def _own(self, p: Packet, operand: str, owner: Array) -> None:
        if ((owner != 0) & (owner != p.worker + 1)).any():
            raise Race(f"{operand} overwrites another worker's values of this step", place(p), BROKEN)
        owner[:] = p.worker + 1


def place(p: Packet) -> str:
    return f"worker {p.worker} packet {p.seq} {p.opcode.name}"


def stuck_published(file: PacketFile, lists: Sequence[Sequence[Packet]], at: Sequence[int], worker: int,
                    need: Need) -> StuckDependency:
    """The typed error of a packet that polls in vain. at: next packet of every worker's list."""
    packet = lists[worker][at[worker]]
    address = packet.operands[need.operand]
    late = [p for w, packets in enumerate(lists) for p in packets[at[w] :] if p is not packet
            and any(a == address for n, a in p.operands.items() if n in WRITES[p.opcode])]
    node = file.nodes[packet.node] if packet.node < len(file.nodes) else f"node {packet.node}"
    text = "; ".join(place(p) for p in late[:4]) + ("; ..." if len(late) > 4 else "")
    return StuckDependency(
        f"{need.operand} is not written: {len(late)} producers have not ended{': ' if late else ''}{text}",
        f"{place(packet)} {node}", BROKEN)

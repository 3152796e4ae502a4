"""Look inside a step: programs that stop after one operator, and the arena read through names.

A prefix program is the whole program with every packet of a later operator replaced by NOP; waits and signals stay,
so the step ends as usual and the operator's result is still in its buffer, whoever would have reused it.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from plow.packet.abi import KV_BLOCK, Opcode
from plow.packet.codec import Packet, decode, encode
from plow.packet.container import PacketFile, ProgramRecord
from plow.runtime.bundle import Bundle
from plow.runtime.step import Backend


def with_prefixes(bundle: Bundle) -> tuple[Bundle, dict[tuple[int, int], int]]:
    """The bundle with more programs: (program, node) -> the program that stops after the node."""
    programs = list(bundle.packets.programs)
    index: dict[tuple[int, int], int] = {}
    for p, record in enumerate(bundle.packets.programs):
        for node in range(len(bundle.packets.nodes)):
            index[p, node] = len(programs)
            programs.append(replace(record, lists=[_until(packets, node) for packets in record.lists]))
    return replace(bundle, packets=PacketFile(bundle.packets.header, programs)), index


def _until(packets: np.ndarray, node: int) -> np.ndarray:
    return encode([p if p.node <= node else as_nop(p) for p in map(decode, packets)])


def as_nop(p: Packet) -> Packet:
    """The packet's place in the protocol without its work."""
    return Packet(Opcode.NOP, worker=p.worker, seq=p.seq, node=p.node, waits=p.waits, signals=p.signals)


def packet_of(record: ProgramRecord, node: int) -> Packet:
    """One of the node's packets: all share operands and strides."""
    return next(p for packets in record.lists for p in map(decode, packets[packets["node"] == node]))


def read_rows(backend: Backend, p: Packet, width: int, rows: int) -> np.ndarray:
    """The packet's result y: f32 [rows, width], a copy."""
    stride = p.dims["y_stride"]
    flat = backend.arena[p.operands["y"] :][: 4 * rows * stride].view(np.float32)
    return flat.reshape(rows, stride)[:, :width].copy()


def read_kv(backend: Backend, p: Packet, blocks: np.ndarray, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Keys and values of positions of one sequence from a QKV or KV_APPEND packet's region: f32 [n, heads * head_dim].

    blocks: the sequence's row of the page table. Region: [block][k, v][head][16 * head_dim], keys transposed.
    """
    heads, dim = p.dims["num_kv_heads"], p.dims["head_dim"]
    size = 2 * heads * KV_BLOCK * dim
    keys, values = [], []
    for block, place in zip(blocks[positions // KV_BLOCK], positions % KV_BLOCK, strict=True):
        start = p.operands["kv"] + 4 * size * int(block)
        data = backend.arena[start : start + 4 * size].view(np.float32).reshape(2, heads, -1)
        keys.append(data[0].reshape(heads, dim, KV_BLOCK)[:, :, place].reshape(-1))
        values.append(data[1].reshape(heads, KV_BLOCK, dim)[:, place].reshape(-1))
    return np.array(keys), np.array(values)


def fill_nan(backend: Backend, segment: str) -> None:
    """Poison: what a packet does not write stays NaN."""
    offset, size = backend.bundle.segments[segment]
    backend.arena[offset : offset + size].view(np.float32)[:] = np.nan

"""The `.pkt` container: header, programs and packets, with a digest over every byte.

    magic "PLOWPKT1" | header bytes u32 | packet bytes u64 | header (JSON) | zero padding to 128 | packets | sha256

The header names the target, the arena layout, the limits and each program's worker lists as (first packet, count).
"""

from __future__ import annotations

import hashlib
import json
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from plow.errors import PacketError
from plow.packet.abi import ABI_VERSION, PACKET, PACKET_BYTES
from plow.packet.codec import decode

MAGIC = b"PLOWPKT1"
PREFIX = struct.Struct("<8sIQ")


@dataclass
class ProgramRecord:
    """One program. lists: a PACKET array a worker; counter_totals: signals a step of each counter; logits: where the
    sampled rows' logits lie (byte offset of the arena, floats a row)."""

    rows: int
    samples: int
    counter_totals: list[int]
    lists: list[np.ndarray]
    logits_offset: int
    logits_stride: int

    @property
    def num_counters(self) -> int:
        return len(self.counter_totals)

    @property
    def num_packets(self) -> int:
        return sum(len(x) for x in self.lists)

    def by_seq(self) -> np.ndarray:
        """All packets in topological order."""
        packets = np.concatenate(self.lists)
        return packets[np.argsort(packets["seq"], kind="stable")]


@dataclass
class PacketFile:
    header: dict[str, Any]
    programs: list[ProgramRecord]

    @property
    def nodes(self) -> list[str]:
        return self.header["nodes"]


def dumps(file: PacketFile) -> bytes:
    first, records, arrays = 0, [], []
    for p in file.programs:
        lists = []
        for packets in p.lists:
            lists.append([first, len(packets)])
            arrays.append(packets)
            first += len(packets)
        records.append(
            {
                "rows": p.rows,
                "samples": p.samples,
                "counter_totals": p.counter_totals,
                "lists": lists,
                "logits_offset": p.logits_offset,
                "logits_stride": p.logits_stride,
            }
        )
    header = json.dumps({**file.header, "abi_version": ABI_VERSION, "programs": records}, sort_keys=True).encode()
    body = b"".join(a.tobytes() for a in arrays)
    blob = PREFIX.pack(MAGIC, len(header), len(body)) + header
    blob += b"\0" * (-len(blob) % PACKET_BYTES) + body
    return blob + hashlib.sha256(blob).digest()


def loads(blob: bytes, where: str = "model.pkt") -> PacketFile:
    """Decode and check everything: digest, ABI version, bounds, every record. Raises PacketError."""
    fix = "build the bundle again with plowc"
    if len(blob) < PREFIX.size + 32 or blob[:8] != MAGIC:
        raise PacketError("not a packet file", where, fix)
    if hashlib.sha256(blob[:-32]).digest() != blob[-32:]:
        raise PacketError("digest does not match the bytes", where, fix)
    _, header_bytes, body_bytes = PREFIX.unpack_from(blob)
    header = json.loads(blob[PREFIX.size : PREFIX.size + header_bytes])
    if header["abi_version"] != ABI_VERSION:
        raise PacketError(f"packet ABI {header['abi_version']}, this interpreter runs {ABI_VERSION}", where, fix)
    start = PREFIX.size + header_bytes
    start += -start % PACKET_BYTES
    if start + body_bytes + 32 != len(blob) or body_bytes % PACKET_BYTES:
        raise PacketError("length does not match the header", where, fix)
    packets = np.frombuffer(blob, PACKET, body_bytes // PACKET_BYTES, start)
    programs = []
    for r in header.pop("programs"):
        lists = [packets[a : a + n] for a, n in r["lists"]]
        programs.append(
            ProgramRecord(r["rows"], r["samples"], r["counter_totals"], lists, r["logits_offset"], r["logits_stride"])
        )
    for p in programs:
        _check_lists(p, where)
    return PacketFile(header, programs)


def _check_lists(p: ProgramRecord, where: str) -> None:
    totals = [0] * p.num_counters
    for worker, packets in enumerate(p.lists):
        for r in packets:
            packet = decode(r)
            if packet.worker != worker:
                raise PacketError(f"packet {packet.seq} names worker {packet.worker} in the list of {worker}", where)
            for counter in [*packet.signals, *(c for c, _ in packet.waits)]:
                if counter >= p.num_counters:
                    raise PacketError(f"packet {packet.seq} uses counter {counter} of {p.num_counters}", where)
            for counter in packet.signals:
                totals[counter] += 1
    if totals != p.counter_totals:
        raise PacketError(f"T={p.rows}: counter totals do not match the signals", where)


def save(file: PacketFile, path: Path) -> str:
    """Write the container; returns its sha256 (hex), the digest that certificates name."""
    blob = dumps(file)
    path.write_bytes(blob)
    return hashlib.sha256(blob).hexdigest()


def load(path: Path) -> PacketFile:
    try:
        return loads(path.read_bytes(), str(path))
    except OSError as e:
        raise PacketError(f"cannot read: {e.strerror}", str(path), "build the bundle with plowc") from None

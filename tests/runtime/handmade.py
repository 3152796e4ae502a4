"""Bundles made by hand, packet by packet, for tests of the interpreter and the loader."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from plow.packet import container
from plow.packet.codec import Packet, encode
from plow.packet.container import PacketFile, ProgramRecord
from plow.packet.layouts import pack_units
from plow.runtime.bundle import Bundle, load

SEGMENT = 1 << 20
"""weights | activations | kv, each of this many bytes."""


def bf16(array: np.ndarray) -> np.ndarray:
    """f32 values that bf16 holds exactly, as u16 bits."""
    return (array.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def as_f32(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)


class Handmade:
    """Hands out arena addresses and writes the bundle."""

    def __init__(self, path: Path, max_ctx: int = 64, slots: int = 3, vocab: int = 64, kv_blocks: int = 12) -> None:
        self.path = path
        self.image = np.zeros(SEGMENT, np.uint8)
        self._next = {"weights": 0, "activations": SEGMENT, "kv": 2 * SEGMENT}
        self.limits = {
            "max_ctx": max_ctx,
            "max_slots": slots,
            "max_rows": 8,
            "max_samples": 8,
            "num_kv_blocks": kv_blocks,
            "kv_block": 16,
            "vocab_size": vocab,
            "num_layers": 1,
            "blocks_per_seq": -(-max_ctx // 16),
        }

    def reserve(self, segment: str, size: int) -> int:
        at = self._next[segment]
        self._next[segment] += size + -size % 64
        return at

    def const(self, array: np.ndarray) -> int:
        at = self.reserve("weights", array.nbytes)
        self.image[at : at + array.nbytes] = np.ascontiguousarray(array).view(np.uint8).reshape(-1)
        return at

    def units(self, weight: np.ndarray) -> int:
        """weight: u16 bits [N, K]."""
        return self.const(pack_units(weight))

    def rows(self, count: int, stride: int) -> int:
        return self.reserve("activations", 4 * count * stride)

    def kv(self, heads: int, head_dim: int) -> int:
        return self.reserve("kv", self.limits["num_kv_blocks"] * 2 * heads * 16 * head_dim * 4)

    def write(self, programs: list[tuple[int, int, list[Packet], int, int]], workers: int = 1) -> dict[str, Any]:
        """programs: (rows, samples, packets, logits offset, logits stride); returns the manifest. Certified."""
        records, nodes = [], []
        for rows, samples, packets, offset, stride in programs:
            count = 1 + max([0, *(c for p in packets for c in p.signals), *(c for p in packets for c, _ in p.waits)])
            totals = [sum(c in p.signals for p in packets) for c in range(count)]
            for i, p in enumerate(packets):
                p.seq, p.node = i, i
            nodes = max(nodes, [f"node{i}" for i in range(len(packets))], key=len)
            lists = [encode([p for p in packets if p.worker == w]) for w in range(workers)]
            records.append(ProgramRecord(rows, samples, totals, lists, offset, stride))
        header = {
            "target": "cpu",
            "workers": workers,
            "nodes": nodes,
            "limits": self.limits,
            "arena": {
                "bytes": 3 * SEGMENT,
                "segments": {"weights": [0, SEGMENT], "activations": [SEGMENT, SEGMENT], "kv": [2 * SEGMENT, SEGMENT]},
            },
        }
        self.path.mkdir(exist_ok=True)
        digest = container.save(PacketFile(header, records), self.path / "model.pkt")
        (self.path / "weights.bin").write_bytes(self.image.tobytes())
        (self.path / "interp.so").write_bytes(b"no library")
        (self.path / "config.json").write_text("{}")
        (self.path / "certificates").mkdir(exist_ok=True)
        certificate = {"packet_sha256": digest, "verdict": "certified"}
        (self.path / "certificates" / "D.json").write_text(json.dumps(certificate))
        manifest = {
            "schema": "plow.bundle/1",
            "target": "cpu",
            "eos_token_ids": [],
            "files": {"config.json": _sha(self.path / "config.json")},
        }
        for part, name in (("packets", "model.pkt"), ("weights", "weights.bin"), ("interpreter", "interp.so")):
            manifest[part] = {"file": name, "sha256": _sha(self.path / name)}
        self.save_manifest(manifest)
        return manifest

    def save_manifest(self, manifest: dict[str, Any]) -> None:
        (self.path / "manifest.json").write_text(json.dumps(manifest))

    def bundle(
        self,
        packets: list[Packet],
        rows: int = 8,
        samples: int = 8,
        logits: int = SEGMENT,
        stride: int = 64,
        workers: int = 1,
    ) -> Bundle:
        self.write([(rows, samples, packets, logits, stride)], workers)
        return load(self.path)


def _sha(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()

"""What a kernel that stopped itself left behind: the notes of its late waits, and the typed error that they make."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from plow.errors import StuckDependency
from plow.packet.abi import Opcode
from plow.packet.codec import decode
from plow.packet.container import PacketFile, ProgramRecord
from plow.packet.published import UNWRITTEN, published_words

DIAG_NOTES, DIAG_WARPS, DIAG_WORDS = 16, 12, 4
WAITS = {
    1: "a ring stage to be loaded",
    2: "room in the ring",
    3: "the consumers' part of a tile",
    4: "the epilogue to take a tile",
    5: "a copy to land",
    6: "the end of the step before",
    7: "an activation vector",
    8: "sums of squares",
    9: "q, k or v",
    10: "partial attention of another split",
    11: "the workers' best ids",
    12: "the sampled token",
}
"""enum What in kernels/cuda/worker.cuh."""


@dataclass(frozen=True)
class Note:
    """What a warp waited for when the kernel was stopped. packet: place in the worker's list."""

    worker: int
    warp: int
    what: int
    packet: int
    step: int
    have: int
    want: int

    @property
    def role(self) -> str:
        return "loader" if self.warp == 9 else "epilogue" if self.warp == 8 else f"consumer {self.warp}"


def notes(diag: np.ndarray) -> list[Note]:
    """The notes that late waits left (worker.cuh, `waiting`). diag: u64 words of the mapped buffer."""
    table = diag[DIAG_NOTES:].reshape(-1, DIAG_WARPS, DIAG_WORDS)
    found = []
    for worker, warp in np.argwhere(table[:, :, 0] != 0):
        a, b = (int(x) for x in table[worker, warp, :2])
        found.append(Note(int(worker), int(warp), a & 0xFF, (a & 0xFFFFFFFF) >> 8, a >> 32, b & 0xFFFFFFFF, b >> 32))
    return found


@dataclass(frozen=True)
class Published:
    """Both copies of the published data when nothing moved any more. words: u32; start: their byte offset in the arena;
    steps: that the program had completed before the call."""

    words: np.ndarray
    start: int
    steps: int

    def unwritten(self, offsets: np.ndarray, step: int) -> bool:
        """Whether one of the words (byte offsets in the arena, copy 0) is unwritten in a step of the call."""
        half = len(self.words) // 2
        at = (offsets - self.start) // 4 + half * ((self.steps + step) % 2)
        return bool((self.words[at] == UNWRITTEN).any())


def culprit(record: ProgramRecord, n_rows: int, published: Published, step: int) -> np.void | None:
    """The first packet of the program whose result is missing: all that it reads is there."""
    for p in sorted((p for packets in record.lists for p in packets), key=lambda p: int(p["seq"])):
        words = published_words(decode(p), n_rows)
        if len(words) and published.unwritten(words, step):
            return p
    return None


def stuck(
    packets: PacketFile, program: int, n_rows: int, diag: np.ndarray, published: Published | None = None
) -> StuckDependency:
    """The typed error of a step that cannot go on: the packet that did not publish, or without a look at the data the
    earliest packet that waits; who waits for what."""
    record, nodes = packets.programs[program], packets.header.get("nodes", [])
    found = notes(diag)
    if not found:
        return StuckDependency("a wait ran into its limit and nobody left a note", f"T={record.rows}", "run it again")

    def packet(n: Note) -> np.void:
        return record.lists[n.worker][n.packet]

    def place(p: np.void) -> str:
        name = nodes[int(p["node"])] if int(p["node"]) < len(nodes) else f"node {int(p['node'])}"
        return f"worker {int(p['worker'])} packet {int(p['seq'])} {Opcode(int(p['opcode'])).name} {name}"

    first = min(found, key=lambda n: (n.step, int(packet(n)["seq"]), n.worker, n.warp))
    missing = culprit(record, n_rows, published, first.step) if published else None
    groups = Counter((WAITS.get(n.what, "something unknown"), nodes[int(packet(n)["node"])]) for n in found)
    waiting = "; ".join(f"{count} for {what} in {node}" for (what, node), count in groups.most_common(3))
    blame = f"{first.role} waited for {WAITS.get(first.what, '?')}"
    if missing is not None:
        blame = "the packet did not publish its result"
    return StuckDependency(
        f"{blame} in step {first.step} of the call; {len(found)} warps wait: {waiting}; the first is {first.role} of "
        f"{place(packet(first))} (have {first.have}, want {first.want})",
        f"T={record.rows} {place(packet(first) if missing is None else missing)}",
        "the packet program is wrong, or another process holds the device",
    )

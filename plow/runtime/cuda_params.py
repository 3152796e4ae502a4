"""The kernel's parameters as the host writes them (kernels/cuda/params.h), and what a failed launch left behind."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from plow.errors import StuckDependency
from plow.packet.abi import STREAM_COLUMNS, Opcode
from plow.packet.container import PacketFile
from plow.runtime.step import StepBatch

POINTERS = ("packets", "counts", "arena", "counters", "page_table", "out_tokens", "diag", "trace")
ROWS = (STREAM_COLUMNS,)
PARAMS = np.dtype(
    [(name, "<u8") for name in (*POINTERS, "published_offset", "published_bytes")]
    + [
        (name, "<u4")
        for name in ("max_packets", "workers", "blocks_per_seq", "n_steps", "n_rows", "step_base", "flags", "inflight")
    ]
    + [(name, "<u4", ROWS) for name in ("tokens", "positions", "slots")]
    + [("sample_index", "<i4", ROWS)]
)
DIAG_NOTES, DIAG_WARPS = 16, 12
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


def rows_of(params: np.ndarray, batch: StepBatch) -> None:
    """Fill the row fields from a batch."""
    params["n_rows"] = batch.n_rows
    for name, values in (("tokens", batch.tokens), ("positions", batch.positions), ("slots", batch.slots)):
        params[name][: batch.n_rows] = values
    params["sample_index"] = -1
    params["sample_index"][batch.sample_rows] = np.arange(batch.n_samples)


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
    table = diag[DIAG_NOTES:].reshape(-1, DIAG_WARPS, 2)
    found = []
    for worker, warp in np.argwhere(table[:, :, 0] != 0):
        a, b = (int(x) for x in table[worker, warp])
        found.append(Note(int(worker), int(warp), a & 0xFF, (a & 0xFFFFFFFF) >> 8, a >> 32, b & 0xFFFFFFFF, b >> 32))
    return found


def stuck(packets: PacketFile, program: int, diag: np.ndarray) -> StuckDependency:
    """The typed error of a step that cannot go on. Everybody waits for somebody, so the culprit is among those whose
    packet comes first in the program: nothing before it is late."""
    record, nodes = packets.programs[program], packets.header.get("nodes", [])
    found = notes(diag)
    if not found:
        return StuckDependency("a wait ran into its limit and nobody left a note", f"T={record.rows}", "run it again")
    seq = {n: int(record.lists[n.worker][n.packet]["seq"]) for n in found}
    first = min(found, key=lambda n: (n.step, seq[n], n.worker, n.warp))
    p = record.lists[first.worker][first.packet]
    name = nodes[int(p["node"])] if int(p["node"]) < len(nodes) else f"node {int(p['node'])}"
    beside = [n for n in found if n.worker == first.worker and n is not first]
    others = "; ".join(f"{n.role} waits for {WAITS.get(n.what, '?')} at packet {seq[n]}" for n in beside[:4])
    return StuckDependency(
        f"{first.role} waited for {WAITS.get(first.what, 'something unknown')} (have {first.have}, want {first.want}) "
        f"in step {first.step} of the call; {len(found)} warps wait{'; beside it: ' + others if others else ''}",
        f"T={record.rows} worker {first.worker} packet {seq[first]} {Opcode(int(p['opcode'])).name} {name}",
        "the packet program is wrong, or another process holds the device; start again with a fresh process",
    )

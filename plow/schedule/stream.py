"""Programs of STREAM packets: which worker computes which tiles, and where every buffer lies.

0 ... weights ... | states and logits | published, copy 0 | published, copy 1 | KV pages, one region a cache |

Placement is balanced per operator (no worker above ceil(tiles / workers)); what is left over goes to the workers with
the least bytes so far. Tiles with a state stay with one owner for the whole step, so residual additions need no
dependency. Inside a step every dependency is published data or program order; the only counter is the step counter.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from functools import partial
from itertools import pairwise

import numpy as np

from plow.errors import LoweringError
from plow.graph.ir import Graph
from plow.packet.abi import KV_BLOCK, STEP_COUNTER, STREAM_COLUMNS, Opcode
from plow.packet.codec import Packet, encode
from plow.packet.container import ProgramRecord
from plow.schedule.arena import WeightSegment, align
from plow.schedule.laid import Laid
from plow.tiles.forms import CacheRef, WeightRef
from plow.tiles.stream import MAX_SPLITS, BufferRef, Ref, StreamForm, StreamLowering

PUBLISHED = ("vec", "ssq", "rows", "keys", "tokens", "partial")
COPY_ALIGN = 256
ATTENTION_LOAD = 512
"""Positions of context that placement assumes when it counts the bytes of attention packets."""


def lay_stream(
    graph: Graph,
    rows: tuple[int, ...],
    workers: int,
    max_ctx: int,
    max_batch: int,
    num_kv_blocks: int,
    valid_vocab: int,
) -> Laid:
    """Programs of all row buckets. Raises LoweringError when the graph or a bucket has no STREAM form."""
    if max(rows) > STREAM_COLUMNS:
        raise LoweringError(f"{max(rows)} rows do not fit {STREAM_COLUMNS} columns", "--rows", "at most 8 rows a step")
    forms = StreamLowering(graph, valid_vocab).forms()
    weights = WeightSegment()
    weights.place(graph, forms, max_ctx)
    buffers = [Buffers(graph, forms, t, workers) for t in rows]
    plain, published = max(b.plain for b in buffers), sum(b.published for b in buffers)
    for earlier, b in pairwise(buffers):
        b.first = earlier.first + earlier.published
    start = align(weights.bytes)
    published_at = align(start + align(plain), COPY_ALIGN)
    kv_at = published_at + 2 * published
    kv, kv_bytes = {}, 0
    for c in graph.meta["caches"]:
        kv[c["name"]] = kv_at + kv_bytes
        kv_bytes += align(num_kv_blocks * c["num_kv_heads"] * page_bytes(c["head_dim"]))

    def address(b: Buffers, ref: Ref) -> int:
        if isinstance(ref, WeightRef):
            return weights.offsets[ref]
        if isinstance(ref, CacheRef):
            return kv[ref.name]
        return b.offsets[ref] + (published_at + b.first if ref.kind in PUBLISHED else start)

    programs = []
    for t, b in zip(rows, buffers, strict=True):
        lists = Placement(forms, t, workers, partial(address, b)).lists()
        head = forms[-2]
        programs.append(
            ProgramRecord(
                t,
                min(t, max_batch),
                [workers],
                [encode(packets) for packets in lists],
                address(b, head.operands["logits"]),
                head.dims["logits_stride"],
            )
        )
    segments = {
        "weights": (0, weights.bytes),
        "activations": (start, published_at - start),
        "published": (published_at, 2 * published),
        "kv": (kv_at, kv_bytes),
    }
    return Laid(weights, segments, programs, [f.node.name for f in forms], {"published_bytes": published})


def page_bytes(head_dim: int) -> int:
    """Keys and values of KV_BLOCK positions of one kv head in bf16."""
    return 2 * KV_BLOCK * head_dim * 2


def columns(rows: int) -> int:
    """Columns of published values of a program."""
    return 1 if rows == 1 else STREAM_COLUMNS


def splits_of(form: StreamForm, rows: int, workers: int) -> int:
    """Parts of the context: the largest power of two that gives every packet a worker of its own and every part an even
    share of the columns (a multiple of 4)."""
    d = form.dims
    width = d["num_heads"] // d["num_kv_heads"] * d["head_dim"]
    splits = 1
    while splits < MAX_SPLITS and rows * d["num_kv_heads"] * splits * 2 <= workers and width % (splits * 8) == 0:
        splits *= 2
    return splits


class Buffers:
    """Offsets of a program's buffers in the published and in the plain segment (relative to their starts).

    A published buffer has a place of its own, in every program: its words must stay unwritten until they are written,
    also while another program runs. States are reused once their last reader has run, which program order on the owner
    allows.
    first: where the program's published buffers begin.
    """

    def __init__(self, graph: Graph, forms: list[StreamForm], rows: int, workers: int) -> None:
        self.offsets: dict[BufferRef, int] = {}
        self.first = self.published = self.plain = 0
        self.rows, self.cols, self.workers = rows, columns(rows), workers
        last = {ref: i for i, f in enumerate(forms) for ref in f.operands.values() if isinstance(ref, BufferRef)}
        free: dict[int, list[int]] = {}
        for i, form in enumerate(forms):
            refs = [r for r in form.operands.values() if isinstance(r, BufferRef)]
            for ref in refs:
                if ref.kind == "state" and last[ref] == i and ref in self.offsets:
                    free.setdefault(self.size(ref, form), []).append(self.offsets[ref])
            for ref in refs:
                if ref not in self.offsets:
                    self._place(ref, self.size(ref, form), free)
        self.published = align(self.published, COPY_ALIGN)

    def _place(self, ref: BufferRef, size: int, free: dict[int, list[int]]) -> None:
        if ref.kind in PUBLISHED:
            self.offsets[ref] = self.published
            self.published += align(size)
        elif ref.kind == "state" and free.get(size):
            self.offsets[ref] = free[size].pop()
        else:
            self.offsets[ref] = self.plain
            self.plain += align(size)

    def size(self, ref: BufferRef, form: StreamForm) -> int:
        """Bytes; the form is one that reads or writes the buffer."""
        d, cols = form.dims, self.cols
        if ref.kind == "partial":
            group = d["num_heads"] // d["num_kv_heads"]
            words = group * d["head_dim"] + align(2 * group, 4)
            return self.rows * d["num_kv_heads"] * splits_of(form, self.rows, self.workers) * words * 4
        if ref.kind == "tokens":
            return cols * 4
        if ref.kind == "keys":
            return cols * self.workers * 8
        if ref.kind in ("rows", "logits"):
            return cols * (d.get("y_stride") or d.get("qkv_stride") or d["logits_stride"]) * 4
        if form.opcode == Opcode.STREAM_ATTENTION:
            features = d["num_heads"] * d["head_dim"]
        elif ref in (form.operands.get("state"), form.operands.get("y"), form.operands.get("next_ssq")):
            features = d.get("n", d["k"])
        else:
            features = d["n"] if ref == form.operands.get("residual") and "n" in d else d["k"]
        return {"vec": features * cols * 2, "ssq": features // 16 * cols * 4, "state": features // 16 * 512}[ref.kind]


class Placement:
    """The workers' lists of one program."""

    def __init__(self, forms: list[StreamForm], rows: int, workers: int, address: Callable[[Ref], int]) -> None:
        self.forms, self.rows, self.workers, self.address = forms, rows, workers, address
        self.load = np.zeros(workers)
        self.keys = 0
        self.owners: dict[int, list[tuple[int, int, int]]] = {}

    def lists(self) -> list[list[Packet]]:
        out: list[list[Packet]] = [[] for _ in range(self.workers)]
        for node, form in enumerate(self.forms):
            for p in self._packets(form):
                p.node = node
                out[p.worker].append(p)
        seq = 0
        for w, packets in enumerate(out):
            if not packets or packets[-1].opcode not in (Opcode.STREAM_HEAD, Opcode.STREAM_SAMPLE):
                packets.append(Packet(Opcode.NOP, worker=w, node=len(self.forms) - 1))
            packets[0].waits = [(STEP_COUNTER, self.workers)]
            packets[-1].signals = [STEP_COUNTER]
        for p in sorted((p for packets in out for p in packets), key=lambda p: (p.node, p.worker)):
            p.seq, seq = seq, seq + 1
        return out

    def _packets(self, form: StreamForm) -> list[Packet]:
        cols = {"cols": columns(self.rows)}
        if form.axis == "tile":
            packets = [self._packet(form, w, {"tile0": a, "tile1": b, **cols}) for w, a, b in self._tiles(form)]
            if form.opcode == Opcode.STREAM_HEAD:
                self.keys = len(packets)
                for i, p in enumerate(packets):
                    p.dims |= {"key": i, "keys": self.keys}
            return packets
        if form.axis == "row":
            return [
                self._packet(form, r % self.workers, {"row": r, "keys": self.keys, **cols}) for r in range(self.rows)
            ]
        splits = splits_of(form, self.rows, self.workers)
        units = [(r, h, s) for s in range(splits) for r in range(self.rows) for h in range(form.extent)]
        cost = ATTENTION_LOAD / splits * form.dims["head_dim"] * 4
        return [
            self._packet(
                form, w, {"row": units[i][0], "kv_head": units[i][1], "split": units[i][2], "splits": splits, **cols}
            )
            for w, a, b in self._spread(len(units), cost)
            for i in range(a, b)
        ]

    def _packet(self, form: StreamForm, worker: int, dims: dict[str, int]) -> Packet:
        operands = {name: self.address(ref) for name, ref in form.operands.items()}
        return Packet(
            form.opcode, operands, {**form.dims, **dims}, dict(form.imms), form.flags, form.epilogue, worker=worker
        )

    def _tiles(self, form: StreamForm) -> list[tuple[int, int, int]]:
        if not form.owned:
            return self._spread(form.extent, form.bytes)
        if form.extent not in self.owners:
            self.owners[form.extent] = self._spread(form.extent, 0)
        for w, a, b in self.owners[form.extent]:
            self.load[w] += (b - a) * form.bytes
        return self.owners[form.extent]

    def _spread(self, count: int, cost: float) -> list[tuple[int, int, int]]:
        """(worker, first, end): contiguous shares, at most ceil(count / workers) each, more for the least loaded."""
        cap = -(-count // self.workers)
        shares = np.zeros(self.workers, int)
        heap = [(self.load[w], w) for w in range(self.workers)]
        heapq.heapify(heap)
        for _ in range(count):
            load, w = heapq.heappop(heap)
            shares[w] += 1
            if shares[w] < cap:
                heapq.heappush(heap, (load + max(cost, 1e-9), w))
        self.load += shares * cost
        ends = np.cumsum(shares)
        return [(w, int(ends[w] - shares[w]), int(ends[w])) for w in range(self.workers) if shares[w]]

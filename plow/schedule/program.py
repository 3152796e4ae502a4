"""Assembly of one program: forms -> tiles -> packets with addresses -> scheduled worker lists."""

from __future__ import annotations

from dataclasses import dataclass

from plow.graph.ir import Graph
from plow.packet.abi import Opcode
from plow.packet.codec import Packet, encode
from plow.packet.container import ProgramRecord
from plow.schedule.arena import KvSegment, Placement, WeightSegment, values_of
from plow.schedule.dependencies import Group, schedule
from plow.tiles.forms import CacheRef, Form, Ref, ValueRef, WeightRef
from plow.tiles.partition import Tile, partition


@dataclass
class Layout:
    """Where the segments lie in the arena (bytes)."""

    weights: WeightSegment
    activations_start: int
    kv: KvSegment
    kv_start: int
    num_kv_blocks: int


def build_program(
    graph: Graph, forms: list[Form], placement: Placement, layout: Layout, rows: int, samples: int, workers: int
) -> ProgramRecord:
    """The program of one bucket. forms end with SAMPLE; node ids are indices into `forms`."""
    groups: list[Group] = []
    makers = _Makers(placement)
    for i, form in enumerate(forms):
        count = samples if form.domain else rows
        tiles = partition(form, count, workers, home=0)
        packets = [_packet(form, i, t, rows, placement, layout) for t in tiles]
        groups.append(Group(packets, makers.follows(form, i)))
    result = schedule(groups, workers, layout.num_kv_blocks)
    lists = [encode([p for p in result.packets if p.worker == w]) for w in range(workers)]
    logits = forms[-1]
    ref = logits.operands["logits"]
    assert isinstance(ref, ValueRef)
    return ProgramRecord(
        rows,
        samples,
        result.counter_totals,
        lists,
        layout.activations_start + placement.offsets[ref.name],
        logits.dims["logits_stride"],
    )


class _Makers:
    """Which earlier nodes touched the memory that a node touches."""

    def __init__(self, placement: Placement) -> None:
        self.placement = placement
        self.touched: dict[str, list[int]] = {}

    def follows(self, form: Form, i: int) -> list[int]:
        found: list[int] = []
        for value in values_of(form):
            found += self.touched.get(value, [])
            for old in self.placement.shared[value] if value not in self.touched else []:
                found += self.touched.get(old, [])
        for ref in form.operands.values():
            if isinstance(ref, CacheRef):
                found += self.touched.get(f"cache {ref.name}", [])
                self.touched.setdefault(f"cache {ref.name}", []).append(i)
        for value in values_of(form):
            self.touched.setdefault(value, []).append(i)
        return [j for j in found if j != i]


def _packet(form: Form, node: int, tile: Tile, rows: int, placement: Placement, layout: Layout) -> Packet:
    dims = {"row0": tile.row0, "row1": tile.row1, "row_step": tile.row_step, **form.dims}
    if form.axis == "unit":
        dims |= {"unit0": tile.axis0, "unit1": tile.axis1}
    elif form.axis == "head":
        dims |= {"head0": tile.axis0, "head1": tile.axis1}
    if form.opcode == Opcode.SELECT:
        dims["x_rows"] = rows
    operands = {name: _address(ref, placement, layout) for name, ref in form.operands.items()}
    return Packet(
        form.opcode, operands, dims, dict(form.imms), form.flags, form.epilogue, form.domain, tile.worker, node=node
    )


def _address(ref: Ref, placement: Placement, layout: Layout) -> int:
    if isinstance(ref, WeightRef):
        return layout.weights.offsets[ref]
    if isinstance(ref, ValueRef):
        return layout.activations_start + placement.offsets[ref.name]
    return layout.kv_start + layout.kv.offsets[ref.name]

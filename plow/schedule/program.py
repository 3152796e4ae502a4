"""Assembly of one program: forms -> tiles -> packets with addresses -> scheduled worker lists."""

from __future__ import annotations

from dataclasses import dataclass

from plow.graph.ir import Graph
from plow.packet.abi import Opcode
from plow.packet.codec import Packet, encode
from plow.packet.container import ProgramRecord
from plow.schedule.arena import KvSegment, Placement, WeightSegment, align, place_activations, values_of
from plow.schedule.dependencies import Group, schedule
from plow.schedule.laid import Laid
from plow.tiles.forms import CacheRef, Form, Lowering, Ref, ValueRef, WeightRef, sample_form
from plow.tiles.partition import Tile, partition


@dataclass
class Layout:
    """Where the segments lie in the arena (bytes)."""

    weights: WeightSegment
    activations_start: int
    kv: KvSegment
    kv_start: int
    num_kv_blocks: int


PROMPT_ROWS = 16
"""Programs with at least this many rows may use bf16 dot products."""


def lay_units(
    graph: Graph,
    rows: tuple[int, ...],
    workers: int,
    max_ctx: int,
    max_batch: int,
    num_kv_blocks: int,
    valid_vocab: int,
    bf16_dot: bool,
) -> Laid:
    """Programs of all row buckets for interpreters that stream weight units (CPU). bf16_dot: prompts of PROMPT_ROWS and
    more rows multiply rounded activations. Raises LoweringError."""
    layout = Layout(WeightSegment(), 0, KvSegment(), 0, num_kv_blocks)
    plans = {t: _forms(graph, valid_vocab, bf16_dot and t >= PROMPT_ROWS) for t in rows}
    for forms in plans.values():
        layout.weights.place(graph, forms, max_ctx)
    layout.activations_start = align(layout.weights.bytes)
    samples = {t: min(t, max_batch) for t in rows}
    placements = {t: place_activations(graph, forms, t, samples[t]) for t, forms in plans.items()}
    layout.kv_start = align(layout.activations_start + max(p.bytes for p in placements.values()))
    layout.kv.place(graph.meta["caches"], num_kv_blocks)
    programs = [
        build_program(graph, forms, placements[t], layout, t, samples[t], workers) for t, forms in plans.items()
    ]
    segments = {
        "weights": (0, layout.weights.bytes),
        "activations": (layout.activations_start, layout.kv_start - layout.activations_start),
        "kv": (layout.kv_start, layout.kv.bytes),
    }
    return Laid(layout.weights, segments, programs, [f.node.name for f in next(iter(plans.values()))])


def _forms(graph: Graph, valid_vocab: int, bf16_dot: bool) -> list[Form]:
    lowering = Lowering(graph, bf16_dot)
    return [*(lowering.form(n) for n in graph.nodes), sample_form(lowering, graph.outputs[0], valid_vocab)]


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

"""Arena addresses: weights once for the bundle, activations by liveness for each program, KV regions at the end.

0 ............ weights ............ | activations (largest program) | KV regions, one a cache |
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from plow.graph.ir import Graph
from plow.packet.abi import ALIGN
from plow.packet.effects import kv_region_bytes
from plow.packet.layouts import num_units, units_bytes
from plow.tiles.forms import Form, ValueRef, WeightRef, stride


def align(n: int, step: int = ALIGN) -> int:
    """The next multiple of `step`."""
    return n + -n % step


class HasOperands(Protocol):
    """A form of any target."""

    @property
    def operands(self) -> Mapping[str, object]: ...


@dataclass
class WeightSegment:
    """Offsets of the weight regions, deduplicated: a tied head shares the embedding's region."""

    offsets: dict[WeightRef, int] = field(default_factory=dict)
    bytes: int = 0

    def place(self, graph: Graph, forms: Iterable[HasOperands], max_ctx: int) -> None:
        for form in forms:
            for ref in form.operands.values():
                if isinstance(ref, WeightRef) and ref not in self.offsets:
                    self.offsets[ref] = self.bytes
                    self.bytes += align(weight_bytes(graph, ref, max_ctx))


def weight_bytes(graph: Graph, ref: WeightRef, max_ctx: int) -> int:
    """Bytes of a weight region in its layout."""
    if ref.layout == "rope":
        return max_ctx * int(json.loads(ref.sources[0])["rotary_dim"]) * 4
    shapes = [tuple(int(d) for d in graph.weights[s].shape) for s in ref.sources]
    if ref.layout == "vector":
        return shapes[0][0] * 4
    if ref.layout in ("tiles", "gated_tiles"):
        return sum(n * k * 2 for n, k in shapes)
    if ref.layout == "gated":
        return num_units(2 * (shapes[0][0] + -shapes[0][0] % 16)) * units_bytes(32, shapes[0][1])
    return units_bytes(sum(s[0] for s in shapes), shapes[0][1])


@dataclass
class KvSegment:
    """Offsets of the caches' regions relative to the segment's start."""

    offsets: dict[str, int] = field(default_factory=dict)
    bytes: int = 0

    def place(self, caches: list[dict], num_kv_blocks: int) -> None:
        for c in caches:
            self.offsets[c["name"]] = self.bytes
            self.bytes += align(kv_region_bytes(num_kv_blocks, c["num_kv_heads"], c["head_dim"]))


@dataclass
class Placement:
    """One program's activation buffers. offsets: value -> byte offset in the segment; shared: value -> earlier values
    whose bytes it reuses (write-after-read hazards that the schedule must order)."""

    offsets: dict[str, int]
    shared: dict[str, list[str]]
    bytes: int


def place_activations(graph: Graph, forms: list[Form], rows: int, samples: int) -> Placement:
    """First fit by liveness at node granularity: a buffer may be reused by a node after its last reader's node.

    rows, samples: what the symbols T and S stand for. Graph outputs live to the end of the step.
    """
    bind = {"T": rows, "S": samples}
    last: dict[str, int] = {}
    born: dict[str, int] = {}
    for i, form in enumerate(forms):
        for name in values_of(form):
            born.setdefault(name, i)
            last[name] = i
    for name in graph.outputs:
        last[name] = len(forms)
    size = {v: align(bind[str(graph.types[v].shape[0])] * stride(int(graph.types[v].shape[-1])) * 4) for v in born}
    offsets: dict[str, int] = {}
    shared: dict[str, list[str]] = {}
    total = 0
    for name in sorted(born, key=lambda v: born[v]):
        live = sorted((offsets[v], size[v]) for v in offsets if last[v] >= born[name])
        at = _first_gap(live, size[name])
        shared[name] = [
            v for v in offsets if last[v] < born[name] and offsets[v] < at + size[name] and at < offsets[v] + size[v]
        ]
        offsets[name] = at
        total = max(total, at + size[name])
    return Placement(offsets, shared, total)


def values_of(form: Form) -> list[str]:
    """Activations that a form reads or writes."""
    return [ref.name for ref in form.operands.values() if isinstance(ref, ValueRef)]


def _first_gap(live: list[tuple[int, int]], need: int) -> int:
    at = 0
    for offset, size in live:
        if offset - at >= need:
            return at
        at = max(at, offset + size)
    return at

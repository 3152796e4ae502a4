"""The image of the weight segment: checkpoint tensors in the layout that the interpreters stream."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from plow.graph.ir import Graph
from plow.graph.rope import cos_sin
from plow.packet.layouts import norm_vector, pack_gated, pack_gated_tiles, pack_tiles, pack_units
from plow.schedule.arena import WeightSegment, align, weight_bytes
from plow.tiles.forms import WeightRef

Tensor = Callable[[str], np.ndarray]


def write_image(path: Path, segment: WeightSegment, tensor: Tensor, max_ctx: int) -> None:
    """Write the segment's bytes, region by region in the order of their offsets."""
    with path.open("wb") as out:
        for ref, offset in segment.offsets.items():
            out.seek(offset)
            for chunk in region(ref, tensor, max_ctx):
                _write(out, chunk)
        out.truncate(align(segment.bytes))


def regions(graph: Graph, segment: WeightSegment, max_ctx: int) -> list[dict[str, Any]]:
    """The segment for a manifest, in the order of offsets: layout, offset, bytes, sources (tensor names, or the
    parameters of a rope table) and shape (rows and features of the sources together, before they are packed)."""
    found = []
    for ref, offset in segment.offsets.items():
        shapes = [tuple(int(d) for d in graph.weights[s].shape) for s in ref.sources if s in graph.weights]
        if ref.layout == "rope":
            shape = [max_ctx, int(json.loads(ref.sources[0])["rotary_dim"])]
        else:
            shape = [sum(s[0] for s in shapes), *shapes[0][1:]]
        found.append(
            {
                "layout": ref.layout,
                "offset": offset,
                "bytes": weight_bytes(graph, ref, max_ctx),
                "sources": list(ref.sources),
                "shape": shape,
            }
        )
    return found


def region(ref: WeightRef, tensor: Tensor, max_ctx: int) -> Iterator[np.ndarray]:
    """The arrays that make up a region, in order."""
    if ref.layout == "rope":
        p = json.loads(ref.sources[0])
        cos, sin = cos_sin(np.arange(max_ctx), p["theta"], p["rotary_dim"], p["scaling"])
        yield np.concatenate([cos, sin], axis=1)
    elif ref.layout == "vector":
        yield norm_vector(tensor(ref.sources[0]), ref.zero_centered)
    elif ref.layout == "gated":
        yield pack_gated(tensor(ref.sources[0]), tensor(ref.sources[1]))
    elif ref.layout == "gated_tiles":
        yield pack_gated_tiles(tensor(ref.sources[0]), tensor(ref.sources[1]))
    elif ref.layout == "tiles":
        for source in ref.sources:
            yield pack_tiles(tensor(source))
    else:
        for source in ref.sources:
            yield pack_units(tensor(source))


def _write(out: BinaryIO, array: np.ndarray) -> None:
    out.write(np.ascontiguousarray(array).data)

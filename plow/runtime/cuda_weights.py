"""Weights on the device: uploaded from the bundle's image, or drawn there for a shape bundle."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from plow.errors import BundleError
from plow.graph.rope import cos_sin
from plow.runtime.bundle import REBUILD, Bundle

CHUNK = 64 << 20
STAGES = 2
"""Pinned buffers: one is filled from the file while the other is on its way."""


def upload(cp: Any, arena: Any, bundle: Bundle) -> None:
    """Copy weights.bin to the start of the arena. cp: the cupy module; arena: u8 device array."""
    image = bundle.weights()
    stream = cp.cuda.Stream()
    size = min(CHUNK, len(image))
    buffers = [np.frombuffer(cp.cuda.alloc_pinned_memory(size), np.uint8, size) for _ in range(STAGES)]
    landed = [cp.cuda.Event() for _ in buffers]
    for i, at in enumerate(range(0, len(image), CHUNK)):
        buffer, part = buffers[i % STAGES], image[at : at + CHUNK]
        if i >= STAGES:
            landed[i % STAGES].synchronize()
        buffer[: len(part)] = part
        arena[at : at + len(part)].set(buffer[: len(part)], stream=stream)
        landed[i % STAGES].record(stream)
    stream.synchronize()


def draw(cp: Any, arena: Any, bundle: Bundle) -> None:
    """Random weights, the same for a seed: projections normal(0, scale), norms |normal(1, 0.1)|, rope computed.

    Raises BundleError for a region that no weight of this target has.
    """
    entry = bundle.manifest["weights"]
    random = cp.random.RandomState(entry["synthetic"])
    for r in entry["regions"]:
        at, size = r["offset"], r["bytes"]
        if r["layout"] == "rope":
            p = json.loads(r["sources"][0])
            cos, sin = cos_sin(np.arange(bundle.limits.max_ctx), p["theta"], p["rotary_dim"], p["scaling"])
            table = np.concatenate([cos, sin], axis=1).astype(np.float32)
            arena[at : at + size].set(table.view(np.uint8).reshape(-1))
        elif r["layout"] == "vector":
            values = cp.abs(1 + 0.1 * random.standard_normal(size // 4, cp.float32))
            arena[at : at + size] = values.astype(cp.float32).view(cp.uint8)
        elif r["layout"] in ("tiles", "gated_tiles"):
            for part in range(0, size, CHUNK):
                n = min(CHUNK, size - part) // 2
                values = random.standard_normal(n, cp.float32) * np.float32(entry["scale"])
                arena[at + part : at + part + 2 * n] = bf16_bits(cp, values).view(cp.uint8)
        else:
            raise BundleError(f"weights of layout {r['layout']!r} cannot be drawn", str(bundle.path), REBUILD)


def bf16_bits(cp: Any, values: Any) -> Any:
    """u16 bits of finite f32 values rounded to bf16, ties to even."""
    bits = values.view(cp.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(cp.uint16)

"""Weights on the device: uploaded from the bundle's image, or drawn there for a shape bundle."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from plow.graph.rope import cos_sin
from plow.runtime.bundle import Bundle

CHUNK = 64 << 20


def upload(cp: Any, arena: Any, bundle: Bundle) -> None:
    """Copy weights.bin to the start of the arena. cp: the cupy module; arena: u8 device array."""
    image = bundle.weights()
    for at in range(0, len(image), CHUNK):
        part = image[at : at + CHUNK]
        arena[at : at + len(part)].set(np.ascontiguousarray(part))


def draw(cp: Any, arena: Any, bundle: Bundle) -> None:
    """Random weights, the same for a seed: projections normal(0, scale), norms 1 + normal(0, 0.1), rope computed."""
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
            arena[at : at + size] = (1 + 0.1 * random.standard_normal(size // 4, cp.float32)).view(cp.uint8)
        else:
            for part in range(0, size, CHUNK):
                n = min(CHUNK, size - part) // 2
                bits = (random.standard_normal(n, cp.float32) * np.float32(entry["scale"])).view(cp.uint32)
                bf16 = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(cp.uint16)
                arena[at + part : at + part + 2 * n] = bf16.view(cp.uint8)

"""Tiny programs for the GPU, lowered without a CUDA compiler, and what a fake device does with them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from fake_cupy import FakeCupy, at

from plow.checkpoint import Checkpoint
from plow.compile import Options, lower
from plow.models import build
from plow.oracle import tiny
from plow.packet.abi import ALIGN
from plow.runtime.bundle import Bundle
from plow.runtime.sampler import sample
from plow.runtime.step import Limits
from plow.schedule.weights import regions, write_image

SIZES: dict[str, Any] = {"hidden_size": 128, "intermediate_size": 192, "head_dim": 64}
LLAMA = {**tiny.LLAMA, **SIZES}
GEMMA3 = {**tiny.GEMMA3, **SIZES}
WORKERS = 5


def logits_of(token: int, position: int, vocab: int) -> np.ndarray:
    """What the fake kernel says: f32 [vocab], a function of a row's token and position."""
    return np.random.default_rng(1000 * token + position).standard_normal(vocab).astype(np.float32)


def interpret(bundle: Bundle) -> Callable[[FakeCupy, np.ndarray, np.ndarray], None]:
    """A job that decodes by `logits_of`, and checks what the real kernel relies on."""
    done: dict[str, int] = {}

    def launch(cp: FakeCupy, params: np.ndarray, p: np.ndarray) -> None:
        at_published, size = bundle.segments["published"]
        published = at(int(p["arena"]) + at_published, np.uint8, size)
        assert (published == 0xFF).all(), "unwritten from the start; the kernel leaves it so"
        assert int(p["published"]) * ALIGN * 2 == size
        assert p["step_base"] == done.get("all", 0) & 0xFFFFFFFF and p["parity"] == done.get(str(p["packets"]), 0) % 2
        for key in ("all", str(p["packets"])):
            done[key] = done.get(key, 0) + int(p["n_steps"])
        first = at(p["packets"], np.uint8, 16).tobytes()
        counts = at(p["counts"], np.uint32, int(params["workers"])).tolist()
        record = next(r for r in bundle.packets.programs if [len(x) for x in r.lists] == counts
                      and r.lists[0][0].tobytes()[:16] == first and r.rows >= int(p["n_rows"]))  # fmt: skip
        assert int(p["max_packets"]) == max(counts)
        out = at(p["out_tokens"], np.int32, int(p["n_steps"]), 8)
        tokens, vocab = p["tokens"].astype(int), bundle.limits.vocab_size
        for e in range(int(p["n_steps"])):
            for row in range(int(p["n_rows"])):
                row_at = int(p["arena"]) + record.logits_offset + 4 * row * record.logits_stride
                logits = at(row_at, np.float32, vocab)
                logits[:] = logits_of(int(tokens[row]), int(p["positions"][row]) + e, vocab)
                if p["sample_index"][row] >= 0:
                    picked = int(logits.argmax())
                    if int(p["sampled"]) >> row & 1:
                        names = ("temperature", "top_k", "top_p", "min_p", "seed")
                        how = [p[n][row].item() for n in names]
                        picked = sample(logits, *how, int(p["positions"][row]) + e)
                    out[e, p["sample_index"][row]] = tokens[row] = picked

    return launch


def lowered(out: Path, config: dict[str, Any], synthetic: bool = False, workers: int = WORKERS) -> Bundle:
    """A bundle of programs without an interpreter. synthetic: its weights are regions to be drawn."""
    ck = Checkpoint.open(tiny.write(out / "checkpoint", config, seed=3))
    options = Options("h200", max_ctx=64, max_batch=8, workers=workers)
    c = lower(build(ck.config), options, valid_vocab=300)
    weights: dict[str, Any] = {"file": "weights.bin"}
    if synthetic:
        drawn = regions(c.graph, c.weights, options.max_ctx)
        weights = {"synthetic": 7, "scale": 0.02, "bytes": c.weights.bytes, "regions": drawn}
    else:
        write_image(out / "weights.bin", c.weights, ck.tensor, options.max_ctx)
    manifest = {
        "target": "h200",
        "packets": {"file": "model.pkt", "sha256": "0" * 64},
        "weights": weights,
        "interpreter": {"file": "interp.sm_90a.cubin", "isa": "sm_90a"},
        "files": {},
    }
    (out / "manifest.json").write_text(json.dumps(manifest))
    return Bundle(out, manifest, c.packets, Limits.from_header(c.packets.header), certified=False)

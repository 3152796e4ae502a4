"""Bundles and references of the tests on a GPU, made where the compilers are: the device needs numpy and CuPy only.

    python tests/cuda/device_bundles.py OUT          then, on the device: PLOW_DEVICE_BUNDLES=OUT pytest -m gpu ...

OUT/<name> is a bundle, OUT/<name>.npz holds `tokens` i64 [8, 48], their logits in float32 arithmetic `logits` f32
[8, 48, vocab], and `noise` f64 [8, 48]: by how much (relative, of a row) those logits move when the inputs of
projections and the KV blocks are rounded to bf16, as the GPU target does by design.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

SEQUENCES, LENGTH, MAX_CTX = 8, 48, 64
SIZES: dict[str, Any] = {"hidden_size": 128, "intermediate_size": 192, "head_dim": 64}
MODELS: dict[str, tuple[str, int, tuple[str, ...]]] = {
    "llama": ("LLAMA", 0, ()),
    "llama-few-workers": ("LLAMA", 5, ()),
    "llama-splits": ("LLAMA", 0, ("-DPLOW_SPLIT_PAGES=1",)),
    "gemma3": ("GEMMA3", 0, ()),
    "qwen3": ("QWEN3", 0, ()),
}
"""Name -> config of plow.oracle.tiny, workers (0 = the target's), compiler defines (splits of one page)."""
OWN_SIZES: dict[str, dict[str, Any]] = {"qwen3": {"head_dim": 128}}
"""Sizes of a model that differ from SIZES."""


def build(out: Path, names: tuple[str, ...] = tuple(MODELS)) -> None:
    """Write the bundles and references of `names`. Raises ToolMissing without a CUDA compiler."""
    from plow.compile import Options, compile_checkpoint
    from plow.oracle import tiny

    out.mkdir(parents=True, exist_ok=True)
    for name in names:
        config, workers, defines = MODELS[name]
        with tempfile.TemporaryDirectory() as scratch:
            sizes = SIZES | OWN_SIZES.get(name, {})
            checkpoint = tiny.write(Path(scratch) / name, {**getattr(tiny, config), **sizes}, seed=3)
            interpreter = {"defines": defines} if defines else {}
            options = Options("h200", MAX_CTX, SEQUENCES, workers=workers, interpreter=interpreter)
            compile_checkpoint(checkpoint, out / name, options)
            np.savez(out / f"{name}.npz", **reference(checkpoint, Path(scratch)))


def reference(checkpoint: Path, scratch: Path) -> dict[str, np.ndarray]:
    """tokens, logits, noise: see above. By the numpy interpreter of the CPU target's packets."""
    from plow.checkpoint import Checkpoint
    from plow.compile import Options, lower
    from plow.models import build as build_graph
    from plow.runtime import numpy_ops
    from plow.runtime.bundle import Bundle
    from plow.runtime.step import Limits
    from plow.schedule.weights import write_image

    ck = Checkpoint.open(checkpoint)
    graph = build_graph(ck.config)
    vocab = min(graph.meta["vocab_size"], ck.tokenizer_size or graph.meta["vocab_size"])
    c = lower(graph, Options("cpu", MAX_CTX, SEQUENCES, rows=(8,), workers=1), vocab)
    write_image(scratch / "weights.bin", c.weights, ck.tensor, MAX_CTX)
    manifest = {"weights": {"file": "weights.bin"}}
    bundle = Bundle(scratch, manifest, c.packets, Limits.from_header(c.packets.header), certified=False)
    tokens = np.random.default_rng(0).integers(4, vocab, (SEQUENCES, LENGTH))
    exact = _logits(bundle, tokens, rounded=False)
    plain = numpy_ops.projection_input
    with mock.patch.object(numpy_ops, "projection_input", lambda *a: _bf16(plain(*a))):
        moved = _logits(bundle, tokens, rounded=True)
    return {"tokens": tokens, "logits": exact, "noise": relative(moved, exact)}


def relative(found: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Relative L2 distance of rows [..., vocab]."""
    return np.linalg.norm(found - expected, axis=-1) / np.linalg.norm(expected, axis=-1)


def _bf16(x: np.ndarray) -> np.ndarray:
    import ml_dtypes

    return x.astype(ml_dtypes.bfloat16).astype(np.float32)


def _logits(bundle: Any, tokens: np.ndarray, rounded: bool) -> np.ndarray:
    from plow.runtime.numpy_vm import NumpyBackend
    from plow.runtime.step import StepBatch

    limits, backend = bundle.limits, NumpyBackend(bundle)
    pages = np.arange(limits.num_kv_blocks, dtype=np.int32).reshape(limits.max_slots, -1)
    kv, size = bundle.segments["kv"]
    blocks = backend.arena[kv : kv + size].view(np.float32)
    out = np.empty((*tokens.shape, limits.vocab_size), np.float32)
    rows = range(len(tokens))
    for p in range(tokens.shape[1]):
        backend.run(0, StepBatch.greedy(tokens[:, p], [p] * len(rows), rows, rows, pages))
        out[:, p] = backend.logits(0, len(rows))
        if rounded:
            blocks[:] = _bf16(blocks)
    return out


if __name__ == "__main__":
    build(Path(sys.argv[1]), tuple(sys.argv[2:]) or tuple(MODELS))

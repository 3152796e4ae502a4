"""Tiny checkpoints that STREAM programs can run, their bundles without a device, and steps of the numpy interpreter."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

from plow.checkpoint import Checkpoint
from plow.compile import Compiled, Options, lower
from plow.graph import reference
from plow.models import build
from plow.oracle import tiny
from plow.runtime.bundle import Bundle
from plow.runtime.numpy_vm import NumpyBackend
from plow.runtime.step import Limits, StepBatch
from plow.schedule.weights import write_image

VOCAB = 320
MODELS: dict[str, dict[str, Any]] = {
    # groups of 3 heads, rows of q, k and v that are no power of two
    "llama": {**tiny.LLAMA, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 64},
    "llama_tied": {**tiny.LLAMA, "num_hidden_layers": 1, "num_key_value_heads": 1, "head_dim": 64, "hidden_size": 96,
                   "tie_word_embeddings": True},
    "gemma3": {**tiny.GEMMA3, "num_attention_heads": 2, "head_dim": 128, "sliding_window": 20},
    "qwen3": {**tiny.QWEN3, "head_dim": 128},
}
OPTIONS = {"target": "h200", "max_ctx": 96, "max_batch": 8}
TOKENS = [3 + (7 * i) % 300 for i in range(40)]


def checkpoint(path: Path, name: str) -> Path:
    """A checkpoint whose projections keep the size of activations, so that bf16 errors do not grow with the layers."""
    config = MODELS[name]
    tiny.write(path, config, seed=5)
    weights = tiny.tensors(config, 5)
    for key, w in weights.items():
        if w.ndim == 2 and "embed" not in key:
            weights[key] = (w.astype(np.float32) * 4 / np.sqrt(w.shape[1])).astype(ml_dtypes.bfloat16)
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
    return path


def compiled(checkpoint: Path, **options: Any) -> Compiled:
    graph = build(Checkpoint.open(checkpoint).config)
    return lower(graph, Options(**{**OPTIONS, **options}), graph.meta["vocab_size"])


def bundle(checkpoint: Path, out: Path, workers: int, rows: tuple[int, ...] = ()) -> Bundle:
    """The checkpoint's programs and weights without an interpreter."""
    c = compiled(checkpoint, workers=workers, rows=rows)
    out.mkdir(parents=True, exist_ok=True)
    write_image(out / "weights.bin", c.weights, Checkpoint.open(checkpoint).tensor, OPTIONS["max_ctx"])
    limits = Limits.from_header(c.packets.header)
    return Bundle(out, {"weights": {"file": "weights.bin"}}, c.packets, limits, certified=False)


def reference_logits(checkpoint: Path, tokens: Sequence[int], dtype: Any = np.float64) -> np.ndarray:
    """[positions, vocab] from the graph itself."""
    ck = Checkpoint.open(checkpoint)
    graph = build(ck.config)
    n = np.arange(len(tokens))
    step = {"tokens": np.array(tokens), "positions": n, "slots": np.zeros(len(n), int), "sample_rows": n}
    return reference.run(graph, {k: ck.tensor(k) for k in graph.weights}, step, {}, dtype)["logits"]


def pages(b: Bundle) -> np.ndarray:
    shuffled = np.random.default_rng(0).permutation(b.limits.num_kv_blocks).astype(np.int32)
    return shuffled.reshape(b.limits.max_slots, b.limits.blocks_per_seq)


def program_of(b: Bundle, rows: int) -> int:
    return next(i for i, p in enumerate(b.packets.programs) if p.rows >= rows)


def step(vm: NumpyBackend, tokens: Sequence[int], positions: Sequence[int], slots: Sequence[int],
         rows: int = 0, n_steps: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Run all rows and sample all of them: tokens [n_steps, n], logits [n, vocab] of the last step."""
    index = program_of(vm.bundle, rows or len(tokens))
    batch = StepBatch.greedy(tokens, positions, slots, range(len(tokens)), pages(vm.bundle))
    found = vm.run(index, batch, n_steps)
    return found, vm.logits(index, len(tokens)).copy()


def prompt(vm: NumpyBackend, tokens: Sequence[int], chunk: int, rows: int = 0, slot: int = 1) -> np.ndarray:
    """Logits at every position of a prompt that goes through in chunks."""
    out = []
    for at in range(0, len(tokens), chunk):
        part = tokens[at : at + chunk]
        out.append(step(vm, part, range(at, at + len(part)), [slot] * len(part), rows or chunk)[1])
    return np.concatenate(out)


def error(got: np.ndarray, want: np.ndarray) -> float:
    """Largest relative L2 error of a row."""
    return float((np.linalg.norm(got - want, axis=-1) / np.linalg.norm(want, axis=-1)).max())

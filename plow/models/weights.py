"""The exact match between a graph's weights and a checkpoint's tensors, and the arrays themselves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import ml_dtypes
import numpy as np

from plow.checkpoint import Checkpoint
from plow.errors import CheckpointError
from plow.graph import Graph

STORED = {"bf16": "BF16"}
"""dtype of the op table -> dtype in a safetensors header."""
ROUNDABLE = ("F32", "F16")
EMBED, HEAD = "model.embed_tokens.weight", "lm_head.weight"


def check_weights(graph: Graph, checkpoint: Checkpoint, round_weights: bool = False) -> None:
    """Names, shapes and dtypes must be equal, nothing missing and nothing unused. round_weights: accept F32 and F16
    tensors, to be rounded to bf16 (nearest even) when they are packed.

    One exception: a tied model may carry `lm_head.weight` too when its bytes equal the embedding's (old torch
    files held both names of one tensor). Raises CheckpointError that names the first offending tensor.
    """
    have = checkpoint.tensors
    missing = [name for name in graph.weights if name not in have]
    if missing:
        hint = (
            "set tie_word_embeddings to true if the head is tied"
            if missing[0] == HEAD
            else "config.json describes another model, or a shard is missing"
        )
        raise CheckpointError(f"tensor {missing[0]!r} is missing ({len(missing)} in all)", str(checkpoint.path), hint)
    unused = [name for name in have if name not in graph.weights]
    if unused == [HEAD] and graph.meta.get("tie_word_embeddings"):
        _check_tied_copy(checkpoint)
    elif unused:
        raise CheckpointError(
            f"tensor {unused[0]!r} is not used by the model ({len(unused)} in all)",
            have[unused[0]].file.name,
            "config.json describes another model, or the family does not cover the checkpoint",
        )
    for name, want in graph.weights.items():
        info = have[name]
        where = f"{info.file.name}: {name}"
        if info.shape != want.shape:
            raise CheckpointError(
                f"shape is {list(info.shape)}, config.json implies {list(want.shape)}",
                where,
                "correct config.json, or fetch the matching weights",
            )
        if info.dtype != STORED[want.dtype] and not (round_weights and info.dtype in ROUNDABLE):
            fix = (
                "weights must be bf16: convert the checkpoint, or pass round_weights=True to round them"
                if info.dtype in ROUNDABLE
                else "weights must be bf16: dequantise the checkpoint first"
            )
            raise CheckpointError(f"dtype is {info.dtype}, must be {STORED[want.dtype]}", where, fix)


def _check_tied_copy(checkpoint: Checkpoint) -> None:
    a, b = checkpoint.tensor(EMBED), checkpoint.tensor(HEAD)
    if a.shape != b.shape or a.dtype != b.dtype or not np.array_equal(a.view(np.uint8), b.view(np.uint8)):
        raise CheckpointError(
            "tie_word_embeddings is true, but lm_head.weight differs from the embedding",
            str(checkpoint.path),
            "set tie_word_embeddings to false in config.json",
        )


class _Weights(Mapping[str, np.ndarray]):
    """The graph's weights as bf16 arrays, read when they are asked for."""

    def __init__(self, graph: Graph, checkpoint: Checkpoint) -> None:
        self.graph, self.checkpoint = graph, checkpoint

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self.graph.weights:
            raise KeyError(name)
        return self.checkpoint.tensor(name).astype(ml_dtypes.bfloat16, copy=False)

    def __iter__(self) -> Iterator[str]:
        return iter(self.graph.weights)

    def __len__(self) -> int:
        return len(self.graph.weights)


def bind_weights(graph: Graph, checkpoint: Checkpoint, round_weights: bool = False) -> Mapping[str, np.ndarray]:
    """Check as `check_weights`, then a lazy mapping name -> bf16 array (a view of the file where it is stored so)."""
    check_weights(graph, checkpoint, round_weights)
    return _Weights(graph, checkpoint)

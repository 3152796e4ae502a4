"""The numeric check of a rewrite: both graphs in float64 on the same random weights and tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from plow.errors import GraphError
from plow.graph import Graph, TensorType
from plow.graph.reference import run
from plow.graph.semantics import Caches

Weights = Mapping[str, np.ndarray]
Step = dict[str, np.ndarray]
MARGIN = 7
"""Positions of the first sequence beyond the widest window."""
EXACT = 1e-12
"""Largest difference of a graph that only exact rules made: the arithmetic is the same, operation by operation."""
REASSOCIATED = 1e-8
"""With rules of kind "reassociation": rounding of float64 grows through the layers, a wrong rule is far above."""


def random_weights(graph: Graph, seed: int = 0) -> dict[str, np.ndarray]:
    """f64 arrays: matrices ~ N(0, 1 / in_features), so that activations keep their size; vectors ~ N(0, 1) / 2."""
    rng = np.random.default_rng(seed)
    return {name: rng.standard_normal(_extents(name, t)) * (float(t.shape[-1]) ** -0.5 if len(t.shape) > 1 else 0.5)
            for name, t in sorted(graph.weights.items())}


def _extents(name: str, t: TensorType) -> tuple[int, ...]:
    if not all(isinstance(d, int) for d in t.shape):
        raise GraphError(f"weight has a symbolic shape {t}", name)
    return tuple(int(d) for d in t.shape)


def random_steps(graph: Graph, seed: int = 0, longest: int | None = None) -> list[Step]:
    """Two steps over two sequences: prompt rows of both, interleaved, then one decode row each.

    The first sequence is longer than the widest attention window, so that windowed layers forget; `longest` caps its
    rows (a cap below the window saves time and does not test forgetting). Another i32 input is refused with GraphError.
    """
    rng = np.random.default_rng(seed + 1)
    window = max((n.attrs.get("window", 0) for n in graph.nodes), default=0)
    lengths = (min(window + MARGIN, longest or window + MARGIN), 5)
    rows = [(p, s) for p in range(max(lengths)) for s in (0, 1) if p < lengths[s]]
    vocab = _vocabulary(graph)
    return [_step(graph, rng, vocab, rows), _step(graph, rng, vocab, [(length, s) for s, length in enumerate(lengths)])]


def _vocabulary(graph: Graph) -> int:
    tables = [graph.weights[n.inputs[1]].shape[0] for n in graph.nodes if n.op == "embed"]
    return min((int(t) for t in tables), default=1)


def _step(graph: Graph, rng: np.random.Generator, vocab: int, rows: list[tuple[int, int]]) -> Step:
    """rows: (position, slot). Activations that enter the graph from outside are drawn at random."""
    step: Step = {}
    for name, t in graph.inputs.items():
        if t.dtype == "f32":
            step[name] = rng.standard_normal(t.size({"T": len(rows)})).reshape(len(rows), -1)
        elif name == "tokens":
            step[name] = rng.integers(0, vocab, len(rows)).astype(np.int32)
        elif name in ("positions", "slots"):
            step[name] = np.array([r[name == "slots"] for r in rows], np.int32)
        elif name == "sample_rows":
            step[name] = np.array(sorted({0, len(rows) // 2, len(rows) - 1}), np.int32)
        else:
            raise GraphError(f"no random data for input {name!r} of type {t}", "check_numerics")
    return step


def differences(original: Graph, rewritten: Graph, weights: Weights | None = None, seed: int = 0,
                longest: int | None = None) -> dict[str, float]:
    """Value name -> largest absolute difference over both steps: every value that both graphs have, the outputs, and
    "cache <name>". NaN counts as infinite. weights: HF name -> array, random if None; longest: see random_steps."""
    weights = random_weights(original, seed) if weights is None else weights
    weights = {name: _widened(weights[name]) for name in original.weights}
    caches: tuple[Caches, Caches] = ({}, {})
    worst: dict[str, float] = {}
    for step in random_steps(original, seed, longest):
        before = _observed(original, weights, step, caches[0])
        after = _observed(rewritten, weights, step, caches[1])
        for name in before.keys() & after.keys():
            worst[name] = max(worst.get(name, 0.0), _distance(before[name], after[name]))
    for key in sorted(caches[0].keys() | caches[1].keys()):
        name = f"cache {key[0]}"
        pairs = zip(caches[0].get(key, ()), caches[1].get(key, ()), strict=False)
        found = [_distance(a, b) for a, b in pairs]
        worst[name] = max(worst.get(name, 0.0), max(found, default=np.inf))
    return dict(sorted(worst.items()))


def check_numerics(original: Graph, rewritten: Graph, weights: Weights | None = None, seed: int = 0,
                   longest: int | None = None) -> float:
    """Largest of `differences`: at most EXACT after exact rules, REASSOCIATED otherwise; inf for another number of
    outputs, another shape, a missing cache or a NaN."""
    if len(original.outputs) != len(rewritten.outputs):
        return float("inf")
    return max(differences(original, rewritten, weights, seed, longest).values())


def _widened(a: np.ndarray) -> np.ndarray:
    """f64, once for all runs; by way of f32, which is exact and for bf16 much faster."""
    return np.asarray(a).astype(np.float32).astype(np.float64) if a.dtype.itemsize == 2 else np.asarray(a, np.float64)


def _observed(graph: Graph, weights: Weights, step: Step, caches: Caches) -> dict[str, np.ndarray]:
    seen: dict[str, np.ndarray] = {}

    def keep(name: str, value: Any) -> None:
        if isinstance(value, np.ndarray):
            seen[name] = value

    outputs = run(graph, weights, step, caches, np.float64, keep)
    return seen | {f"output {i}": outputs[o] for i, o in enumerate(graph.outputs)}


def _distance(a: np.ndarray, b: np.ndarray) -> float:
    if a.shape != b.shape or np.isnan(a).any() or np.isnan(b).any():
        return float("inf")
    return float(np.max(np.abs(a - b), initial=0.0))

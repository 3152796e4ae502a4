"""A graph beside the captures of transformers' modules: operator by operator, so that a difference has a name.

Every operator is computed from the oracle's own operands, so errors do not add up along the model and the first
one that is wrong is the only one that is wrong.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from plow.graph import OPS, Graph, Node
from plow.graph.ir import ABSENT
from plow.graph.semantics import Caches
from plow.oracle.difference import capture_keys

Captures = Mapping[str, np.ndarray]
UNSEEN_OPS = ("kv_append",)
"""The cache itself is no module's output; its contents are the rotated keys and v_proj's output, which are captured."""


@dataclass(frozen=True)
class SubStep:
    """error: largest |ours - theirs| of a row over the row's largest |theirs|, worst row; inf for NaN."""

    node: Node
    capture: str
    error: float

    def __str__(self) -> str:
        return f"{self.node.name} ({self.node.op}) {self.error:.2e}"


def module_of(node: Node, graph: Graph) -> str:
    """The transformers module that holds the node's weight, "" without one. A head that shares the embedding's table
    is the module lm_head all the same."""
    name = next((v for v in node.inputs if v in graph.weights and v.endswith(".weight")), "")
    tables = {v for n in graph.nodes if n.op == "embed" for v in n.inputs}
    return "lm_head" if node.op == "linear" and name in tables else name.removesuffix(".weight")


def attention_module(node: Node, graph: Graph) -> str:
    """The module of an attention operator: the parent of the projection that reads its output."""
    reader = next((n for n in graph.consumers().get(node.outputs[0], []) if n.op == "linear"), None)
    return module_of(reader, graph).rpartition(".")[0] if reader else ""


def compare(
    graph: Graph, weights: Mapping[str, np.ndarray], step: Mapping[str, np.ndarray], captures: Captures
) -> list[SubStep]:
    """Every operator whose result was captured, computed in float32 from captured operands, in program order.

    step: the graph's inputs, all rows sampled. An operand that no module shows is the one computed here.
    """
    keys, caches = capture_keys(graph), Caches()
    values: dict[str, Any] = dict(step)
    steps = []
    for node in graph.nodes:
        args = [None if v == ABSENT else values[v] if v in values else np.asarray(weights[v]) for v in node.inputs]
        for out, ours in zip(node.outputs, evaluate(node, args, caches), strict=True):
            key = next((k for k in keys.get(out, ()) if k in captures), None)
            theirs = None if key is None else captures[key]
            if key is not None and theirs is not None:
                steps.append(SubStep(node, key, row_error(theirs, ours)))
            values[out] = ours if theirs is None else theirs.astype(np.float32, copy=False)
    return steps


def evaluate(node: Node, args: list[Any], caches: Caches) -> list[Any]:
    """The op table's reference of one node."""
    spec = OPS[node.op]
    attrs = dict(node.attrs)
    if "cache" in spec.attrs or "kv" in spec.input_names():
        attrs["caches"] = caches
    return spec.reference(*args, **attrs)


def row_error(theirs: np.ndarray, ours: np.ndarray) -> float:
    if theirs.shape != ours.shape or not (np.isfinite(theirs).all() and np.isfinite(ours).all()):
        return math.inf
    off = np.max(np.abs(ours.astype(np.float64) - theirs), axis=-1)
    return float(np.max(off / np.maximum(np.max(np.abs(theirs), axis=-1), np.finfo(np.float32).tiny)))


def not_compared(graph: Graph, steps: list[SubStep]) -> list[Node]:
    """Operators that no capture judged: neither their own result nor that of every operator that reads it."""
    seen = {s.node.name for s in steps}
    users, left = graph.consumers(), []
    for node in graph.nodes:
        readers = [u for out in node.outputs for u in users.get(out, [])]
        by_readers = bool(readers) and all(u.name in seen for u in readers)
        if node.op not in UNSEEN_OPS and node.name not in seen and not by_readers:
            left.append(node)
    return left


def worst(steps: list[SubStep]) -> SubStep | None:
    return max(steps, key=lambda s: s.error, default=None)


def first_above(steps: list[SubStep], tolerance: float) -> SubStep | None:
    """The first operator in program order that departs from the oracle."""
    return next((s for s in steps if not s.error <= tolerance), None)


@dataclass(frozen=True)
class Attribute:
    """A scalar that a graph node and the oracle's module both state. `ours` and `theirs` should be equal."""

    node: str
    name: str
    ours: float
    theirs: float

    @property
    def equal(self) -> bool:
        """Relative 1e-6: transformers keeps some of them as float32."""
        return math.isclose(self.ours, self.theirs, rel_tol=1e-6)

    def __str__(self) -> str:
        return f"{self.node}: {self.name} is {self.ours:g}, transformers has {self.theirs:g}"


def attributes(graph: Graph, modules: Mapping[str, Mapping[str, Any]]) -> list[Attribute]:
    """Attributes of the graph beside the scalars that transformers' modules hold."""
    found = []
    for node in graph.nodes:
        a = node.attrs
        held = modules.get(attention_module(node, graph) if node.op == "attention" else module_of(node, graph), {})
        pairs: dict[str, tuple[Any, Any]] = {}
        if node.op == "rms_norm":
            pairs = {"eps": (a["eps"], held.get("eps", held.get("variance_epsilon")))}
        elif node.op == "embed":
            pairs = {"scale": (a.get("scale", 1.0), held.get("scalar_embed_scale"))}
        elif node.op == "attention":
            window = held.get("sliding_window", 0 if held.get("layer_type") == "full_attention" else None)
            pairs = {
                "scale": (a["scale"], held.get("scaling")),
                "window": (a.get("window", 0), window),
                "head_dim": (a["head_dim"], held.get("head_dim")),
                "queries per key": (a["num_heads"] / a["num_kv_heads"], held.get("num_key_value_groups")),
            }
        found += [
            Attribute(node.name, f"{node.op} {k}", float(x), float(y)) for k, (x, y) in pairs.items() if y is not None
        ]
    return found

"""Name the operator at which a graph departs from transformers.

Every node is evaluated with the reference semantics on transformers' own intermediate values, so errors do not
accumulate from node to node and the tolerance can be tight: what differs, differs in that very operator.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from plow.graph import OPS, Graph, Node
from plow.graph.ir import ABSENT
from plow.graph.semantics import Caches
from plow.oracle.metrics import max_rel_error

Captures = Mapping[str, np.ndarray]
READS = {
    "linear": "weight",
    "rms_norm": "weight",
    "norm_linear": "norm_weight",
    "linear_add": "weight",
    "norm_add": "weight",
    "gated_linear": "gate_weight",
    "norm_gated_linear": "norm_weight",
}
"""op -> its weight whose module receives the op's input x."""
WRITES = {"linear": "weight", "rms_norm": "weight", "norm_linear": "weight"}
"""op -> its weight whose module returns the op's result."""
HEAD_MODULE = "lm_head"


@dataclass(frozen=True)
class Difference:
    """node: the first node that departs; capture: what it was compared with ("<module>.out", or "<module>.<scalar>" for
    an attribute); error: relative to the largest magnitude (inf for an attribute); detail: one line for people."""

    node: str
    op: str
    capture: str
    error: float
    detail: str


def step_inputs(tokens: list[int], rows: list[int] | None = None) -> dict[str, np.ndarray]:
    """Inputs of a step that computes one whole sequence in slot 0 and samples `rows` (default: all): i32 arrays."""
    n = len(tokens)
    return {
        "tokens": np.array(tokens, np.int32),
        "positions": np.arange(n, dtype=np.int32),
        "slots": np.zeros(n, np.int32),
        "sample_rows": np.arange(n, dtype=np.int32) if rows is None else np.array(rows, np.int32),
    }


def first_difference(
    graph: Graph,
    weights: Mapping[str, np.ndarray],
    captures: Captures,
    tokens: list[int],
    attributes: Mapping[str, Mapping[str, Any]] | None = None,
    tolerance: float = 2e-5,
    dtype: Any = np.float32,
) -> Difference | None:
    """The first node whose attribute or result departs from transformers; None when all agree.

    captures: HFOracle.capture(tokens); attributes: HFOracle.attributes(), compared exactly, which also finds what a
    float32 result cannot show (an eps far below the mean square, a window longer than the text).
    """
    keys = capture_keys(graph)
    values: dict[str, Any] = dict(step_inputs(tokens))
    caches: Caches = {}
    for node in graph.nodes:
        wrong = _attribute_difference(graph, node, attributes or {})
        if wrong is not None:
            return wrong
        for name, value in zip(node.outputs, _evaluate(node, values, weights, caches, dtype), strict=True):
            key = next((k for k in keys.get(name, ()) if k in captures), None)
            values[name] = value
            if key is None:
                continue
            reference = captures[key]
            error = max_rel_error(reference, value) if reference.shape == value.shape else float("inf")
            if not error <= tolerance:
                attrs = ", ".join(f"{k}={v}" for k, v in node.attrs.items())
                detail = (
                    f"{node.op}({attrs}) gives another result than {key}: relative error {error:.2g} > {tolerance:g}"
                )
                return Difference(node.name, node.op, key, error, detail)
            values[name] = reference.astype(dtype)
    return None


def compared(graph: Graph, captures: Captures) -> dict[str, str]:
    """value name -> the capture that it is compared with: how much of the graph `first_difference` sees."""
    found = {value: next((k for k in keys if k in captures), "") for value, keys in capture_keys(graph).items()}
    return {value: key for value, key in found.items() if key}


def capture_keys(graph: Graph) -> dict[str, list[str]]:
    """value name -> names under which transformers' captures may hold it, most direct first."""
    producer = graph.producer()
    keys: dict[str, list[str]] = {}
    for node in graph.nodes:
        if node.op == "embed":
            keys.setdefault(node.outputs[0], []).append(f"{_module(node.inputs[1])}.out")
        if node.op in WRITES:
            keys.setdefault(node.outputs[0], []).append(f"{_module_of(node, WRITES[node.op])}.out")
        if node.op == "activation":
            keys.setdefault(node.outputs[0], []).append(f"{_parent(node, producer)}.act_fn.out")
    for node in graph.nodes:
        if node.op == "kv_append":
            keys.setdefault(node.inputs[0], []).insert(0, f"{_parent(producer[node.inputs[0]], producer)}.key")
        if node.op == "attention":
            keys.setdefault(node.inputs[0], []).insert(0, f"{_parent(producer[node.inputs[0]], producer)}.query")
        if node.op in READS:
            keys.setdefault(node.inputs[0], []).append(f"{_module_of(node, READS[node.op])}.in")
    for node in graph.nodes:
        if node.op == "select_rows":  # `step_inputs` samples every row, so rows are selected unchanged
            keys.setdefault(node.inputs[0], []).extend(keys.get(node.outputs[0], []))
    return keys


def _evaluate(
    node: Node, values: dict[str, Any], weights: Mapping[str, np.ndarray], caches: Caches, dtype: Any
) -> list[Any]:
    args = [
        None if v == ABSENT else values[v] if v in values else np.asarray(weights[v]).astype(dtype) for v in node.inputs
    ]
    spec, attrs = OPS[node.op], dict(node.attrs)
    if "cache" in spec.attrs or "kv" in spec.input_names():
        attrs["caches"] = caches
    return spec.reference(*args, **attrs)


def _module(weight: str) -> str:
    return weight.rsplit(".", 1)[0]


def _module_of(node: Node, weight: str) -> str:
    """The module that owns an operand; a linear with the embedding's table is the tied head."""
    module = _module(node.inputs[OPS[node.op].index(weight)])
    return HEAD_MODULE if module.endswith("embed_tokens") else module


def _parent(node: Node, producer: Mapping[str, Node]) -> str:
    """Module that contains the nearest weighted node at or above `node`: q_rope -> "model.layers.3.self_attn"."""
    while node.op not in WRITES:
        if node.inputs[0] not in producer:
            return ""
        node = producer[node.inputs[0]]
    return _module(_module_of(node, WRITES[node.op]))


def _attribute_difference(graph: Graph, node: Node, attributes: Mapping[str, Mapping[str, Any]]) -> Difference | None:
    for key, ours, theirs in _attribute_pairs(graph, node, attributes):
        if ours != theirs:
            return Difference(
                node.name,
                node.op,
                key,
                float("inf"),
                f"{node.op}: {key.rsplit('.', 1)[1]} is {ours}, transformers has {theirs}",
            )
    return None


def _attribute_pairs(
    graph: Graph, node: Node, attributes: Mapping[str, Mapping[str, Any]]
) -> Iterator[tuple[str, Any, Any]]:
    """(capture name, the node's value, transformers' value) of every scalar that both have."""
    if node.op == "rms_norm":
        module = _module_of(node, "weight")
        for key in ("eps", "variance_epsilon"):
            if key in attributes.get(module, {}):
                yield f"{module}.{key}", node.attrs["eps"], attributes[module][key]
    if node.op == "embed":
        module = _module(node.inputs[1])
        if "scalar_embed_scale" in attributes.get(module, {}):
            yield f"{module}.scalar_embed_scale", node.attrs.get("scale", 1.0), attributes[module]["scalar_embed_scale"]
    if node.op == "attention":
        producer = graph.producer()
        module = _parent(producer[node.inputs[0]], producer)
        held = attributes.get(module, {})
        if "scaling" in held:
            yield f"{module}.scaling", node.attrs["scale"], held["scaling"]
        if "layer_type" in held:
            yield f"{module}.sliding_window", node.attrs.get("window", 0), held.get("sliding_window", 0)

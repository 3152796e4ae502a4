"""Power check: change one attribute of a graph at a time. A judge that accepts a changed graph has no power."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from plow.graph import OPS, Graph, Node
from plow.graph.ir import TensorType

STRUCTURAL = {
    "num_heads": "fixed by the weight shapes",
    "num_kv_heads": "fixed by the weight shapes",
    "head_dim": "fixed by the weight shapes",
    "cache": "a name",
}
"""Attributes that are not perturbed: a wrong value fails the shape rules or the weight check instead."""

Change = Callable[[Any], list[Any]]
CHANGES: dict[str, Change] = {
    "eps": lambda v: [v * 10, v + 0.01],
    "zero_centered": lambda v: [not v],
    "theta": lambda v: [v * 2],
    "scaling": lambda v: [{} if v else {"rope_type": "linear", "factor": 2.0}],
    "rotary_dim": lambda v: [v // 2],
    "scale": lambda v: [v * 1.25],
    "window": lambda v: [v - 1, 0] if v > 1 else [4],
    "softcap": lambda v: [v / 2 if v else 1.0],
    "cap": lambda v: [v / 2],
    "act": lambda v: ["gelu_tanh" if v == "silu" else "silu"],
    "factor": lambda v: [v * 1.25],
}
"""attribute -> other values: off by one and off where that is meaningful, else a moderate factor. Ten times eps shows
beside a large mean square only where attributes are compared directly."""
EMBED, HEAD = "model.embed_tokens.weight", "lm_head.weight"


@dataclass(frozen=True)
class Perturbation:
    """graph: a copy in which `node` has `attribute` = `value`. attribute "tie" flips the head between the embedding
    and lm_head.weight; untying a tied head needs a tensor that the checkpoint lacks, so the weight
    check must object."""

    node: str
    attribute: str
    value: Any
    graph: Graph


def perturbations(graph: Graph, every_node: bool = False) -> Iterator[Perturbation]:
    """One perturbation or more for every result-changing attribute of every distinct kind of node: nodes of different
    layers count as one kind when part name and attributes agree. every_node: of every node of every layer."""
    seen: set[str] = set()
    for i, node in enumerate(graph.nodes):
        kind = repr((node.op, node.name.split(".")[-1], sorted((k, v) for k, v in node.attrs.items() if k != "cache")))
        if kind in seen and not every_node:
            continue
        seen.add(kind)
        for name, attr in OPS[node.op].attrs.items():
            if name in STRUCTURAL:
                continue
            for value in CHANGES[name](node.attrs.get(name, attr.default)):
                yield Perturbation(node.name, name, value, _replaced(graph, i, node.with_attrs(**{name: value})))
    yield from _flip_tie(graph)


def _replaced(graph: Graph, index: int, node: Node) -> Graph:
    return graph.with_nodes([*graph.nodes[:index], node, *graph.nodes[index + 1 :]])


def _flip_tie(graph: Graph) -> Iterator[Perturbation]:
    for i, node in enumerate(graph.nodes):
        flip = {EMBED: HEAD, HEAD: EMBED}
        if node.scope != "head" or not flip.keys() & set(node.inputs):
            continue
        old = next(v for v in node.inputs if v in flip)
        weights = dict(graph.weights)
        weights[flip[old]] = TensorType(weights[old].shape, weights[old].dtype)
        if old == HEAD:
            del weights[HEAD]
        inputs = tuple(flip.get(v, v) for v in node.inputs)
        changed = Graph(dict(graph.inputs), weights, list(graph.nodes), list(graph.outputs), {}, dict(graph.meta))
        yield Perturbation(node.name, "tie", flip[old], _replaced(changed, i, replace(node, inputs=inputs)))

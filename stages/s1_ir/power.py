"""Has the gate power? Every attribute of the graph is set wrong in turn, and the judge must see it and name it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from plow.graph import Graph, Node
from plow.graph.ir import ABSENT
from plow.graph.reference import run
from plow.graph.semantics import Caches
from plow.models import build
from plow.oracle.metrics import max_rel_error
from plow.oracle.perturb import Perturbation, perturbations
from stages.subject import Widened, kinds_of_layers, step_inputs, truncated_config, truncated_names
from stages.substeps import attributes, evaluate, row_error

NOT_BY_LOGITS = ("tie", "eps")
"""tie: another weight list, which the weight check refuses; eps: beside a large mean square even 0.01 is below the
resolution of float32 logits (Gemma 3 embeds at a mean square of about 50), so it is compared as stated."""
SAMPLED = 4
"""Last rows whose logits are compared."""


@dataclass(frozen=True)
class Seen:
    """One wrong attribute. logits: how far it moves the logits; local: how far it moves its own operator's result (both
    relative, as in the comparison with the oracle); stated: the oracle's module states another value, or the checkpoint
    has no such tensor."""

    node: str
    attribute: str
    value: Any
    logits: float
    local: float
    stated: bool

    def __str__(self) -> str:
        return f"{self.node}.{self.attribute} = {self.value!r}: logits {self.logits:.1e}, operator {self.local:.1e}"


@dataclass
class Base:
    """One run of the truncated graph: every value, and the logits of the last rows."""

    step: dict[str, np.ndarray]
    values: dict[str, Any]
    caches: Caches
    logits: np.ndarray


def truncated(
    config: dict[str, Any], graph: Graph, weights: Mapping[str, np.ndarray]
) -> tuple[Graph, Widened, list[int]]:
    """The first layer of every kind between the real embedding and head: (graph, its weights, which layers)."""
    layers = kinds_of_layers(graph)
    short = build(truncated_config(config, graph, layers))
    return short, Widened(weights, truncated_names(list(weights), layers)), layers


def measure(
    graph: Graph,
    weights: Mapping[str, np.ndarray],
    tokens: list[int],
    modules: Mapping[str, Mapping[str, Any]],
    stored: set[str],
) -> list[Seen]:
    """Every perturbation of the graph. tokens: longer than the widest window; modules: attributes of the oracle's
    modules under the graph's own names; stored: tensors of the checkpoint under the graph's names.

    Attributes other than the window are judged on the first rows only: what they change shows at any length.
    """
    window = max((n.attrs.get("window", 0) for n in graph.nodes), default=0)
    short = tokens[: min(len(tokens), 33)]
    bases = {False: observe(graph, weights, short)}
    bases[True] = observe(graph, weights, tokens) if window >= len(short) else bases[False]
    return [_see(p, graph, weights, bases[p.attribute == "window"], modules, stored) for p in perturbations(graph)]


def observe(graph: Graph, weights: Mapping[str, np.ndarray], tokens: list[int]) -> Base:
    rows = range(max(0, len(tokens) - SAMPLED), len(tokens))
    step, caches = step_inputs(tokens, rows=list(rows)), Caches()
    values: dict[str, Any] = {}
    out = run(graph, weights, step, caches, observe=values.__setitem__)
    return Base(step, values, caches, out["logits"])


def _see(
    p: Perturbation,
    graph: Graph,
    weights: Mapping[str, np.ndarray],
    base: Base,
    modules: Mapping[str, Mapping[str, Any]],
    stored: set[str],
) -> Seen:
    if p.attribute == "tie":
        return Seen(p.node, p.attribute, p.value, 0.0, 0.0, set(p.graph.weights) != stored)
    node = next(n for n in p.graph.nodes if n.name == p.node)
    changed = run(p.graph, weights, base.step, Caches())["logits"]
    stated = any(not a.equal and a.node == p.node for a in attributes(p.graph, modules))
    local = _local(node, base, weights)
    return Seen(p.node, p.attribute, p.value, max_rel_error(base.logits, changed), local, stated)


def _local(node: Node, base: Base, weights: Mapping[str, np.ndarray]) -> float:
    """The operator alone, on the operands that it had, against the result that it had."""
    known = {**base.step, **base.values}
    args = [None if v == ABSENT else known[v] if v in known else weights[v] for v in node.inputs]
    ours = evaluate(node, args, dict(base.caches))
    return max((row_error(known[out], y) for out, y in zip(node.outputs, ours, strict=True)), default=0.0)


def power_of_logits(seen: list[Seen], tolerance: float) -> tuple[float, str]:
    """(the weakest attribute's largest effect on the logits over the tolerance, its name)."""
    best: dict[tuple[str, str], float] = {}
    for s in seen:
        if s.attribute not in NOT_BY_LOGITS:
            best[s.node, s.attribute] = max(best.get((s.node, s.attribute), 0.0), s.logits / tolerance)
    if not best:
        return 0.0, "nothing was perturbed"
    key = min(best, key=lambda k: best[k])
    return best[key], f"{key[0]}.{key[1]}"


def unnamed(seen: list[Seen], tolerances: Mapping[str, float], graph: Graph) -> list[Seen]:
    """Wrong attributes that neither the operator's own result nor the oracle's modules would show."""
    ops = {n.name: n.op for n in graph.nodes}
    return [s for s in seen if not s.stated and not s.local > 2 * tolerances[ops[s.node]]]

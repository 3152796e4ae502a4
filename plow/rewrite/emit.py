"""From an extraction to nodes: a plan over canonical names, made once a block, and its instances with real names.

A value that exists before and after keeps its name. A node that was not rewritten keeps its name and attributes; a
fused node is called after the rule's `node`: the covered node of that op ("layer.3.o_proj" for linear_add), or
scope + "." + a fixed name ("layer.3.qkv").
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from plow.errors import GraphError
from plow.graph import OPS, Node
from plow.graph.ir import ABSENT as NO_VALUE
from plow.rewrite.block import Block, Instance
from plow.rewrite.egraph import ABSENT, OUT, VALUE, EGraph, ENode
from plow.rewrite.extract import FEMTO, attrs
from plow.rewrite.provenance import Provenance
from plow.rewrite.rule import Rule


@dataclass(frozen=True)
class PlanNode:
    """inputs, outputs: canonical names; a name "t..." is new. own: index of the unchanged node, or -1. named_after:
    index of the node that lends its name, or the fixed name. rules, covers: see `Provenance`. seconds: predicted."""

    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: dict[str, Any]
    own: int
    named_after: int | str
    rules: tuple[str, ...]
    covers: tuple[int, ...]
    seconds: float


@dataclass(frozen=True)
class Plan:
    """nodes: operands first. aliases: root -> the value that stands for it (another root, or a leaf)."""

    nodes: tuple[PlanNode, ...]
    aliases: dict[str, str]


def identity(block: Block, seconds: list[float]) -> Plan:
    """The block as it is; seconds: of each of its nodes."""
    return Plan(tuple(PlanNode(n.op, n.inputs, n.outputs, n.attrs, i, i, (), (i,), seconds[i])
                      for i, n in enumerate(block.nodes)), {})


def plan(block: Block, egraph: EGraph, choice: Mapping[int, ENode], provenance: Provenance, rules: Mapping[str, Rule],
         price: Callable[[ENode], int]) -> Plan:
    """choice: class -> e-node, operands first (`Extraction.choice`); price: in femtoseconds."""
    names = _class_names(block, egraph)
    own = {n: o.own for n, o in provenance.origins.items() if o.own >= 0}
    nodes = []
    for c, n in choice.items():
        if n.op in (VALUE, ABSENT, OUT):
            continue
        inputs = tuple(NO_VALUE if a == egraph.absent else names.get(a, f"t{a}") for a in n.args)
        index = own.get(n, -1)
        chain = tuple(provenance.chain(n))
        covers = tuple(provenance.covers(n))
        called: int | str = index if index >= 0 else _named_after(rules[chain[-1]], covers, block)
        nodes.append(PlanNode(n.op, inputs, _outputs(c, n, egraph, names), attrs(n), index, called, chain, covers,
                              price(n) / FEMTO))
    stands = {r: names[egraph.class_of[r]] for r in block.roots}
    return Plan(tuple(_program_order(nodes)), {r: v for r, v in stands.items() if r != v})


def _program_order(nodes: list[PlanNode]) -> list[PlanNode]:
    """Operands first, otherwise in the order of the last node that each one covers."""
    maker = {out: i for i, n in enumerate(nodes) for out in n.outputs}
    missing = [{maker[v] for v in n.inputs if v in maker} for n in nodes]
    heap = [(n.covers[-1], i) for i, n in enumerate(nodes) if not missing[i]]
    heapq.heapify(heap)
    ordered = []
    while heap:
        _, done = heapq.heappop(heap)
        ordered.append(nodes[done])
        for i, left in enumerate(missing):
            if done in left:
                left.remove(done)
                if not left:
                    heapq.heappush(heap, (nodes[i].covers[-1], i))
    return ordered


def _class_names(block: Block, egraph: EGraph) -> dict[int, str]:
    """Class -> the canonical name of its value: a leaf's, else a root's, else the first in program order."""
    names: dict[int, str] = {}
    for value in (*block.leaves, *block.roots, *block.values()):
        names.setdefault(egraph.class_of[value], value)
    return names


def _outputs(c: int, n: ENode, egraph: EGraph, names: Mapping[int, str]) -> tuple[str, ...]:
    if len(OPS[n.op].outputs) == 1:
        return (names.get(c, f"t{c}"),)
    outs = []
    for i in range(len(OPS[n.op].outputs)):
        projected = egraph.class_of_node.get(ENode(OUT, (i,), (c,)), -1)
        outs.append(names.get(projected, f"t{c}.{i}"))
    return tuple(outs)


def _named_after(rule: Rule, covers: tuple[int, ...], block: Block) -> int | str:
    lenders = [i for i in covers if block.nodes[i].op == rule.node]
    return lenders[-1] if lenders else rule.node


@dataclass
class Names:
    """Names in use; nodes and values have name spaces of their own."""

    nodes: set[str]
    values: set[str]


def instantiate(p: Plan, instance: Instance, taken: Names) -> tuple[list[Node], dict[str, str]]:
    """The nodes of one scope, and actual root name -> the actual name that stands for it. `taken` grows.

    taken.values holds every value of the original graph, since any of them may be kept.
    """
    taken.nodes |= {instance.nodes[n.own].name for n in p.nodes if n.own >= 0}
    names = dict(instance.names)
    nodes = []
    for n in p.nodes:
        name = instance.nodes[n.own].name if n.own >= 0 else _fused_name(n, instance, taken)
        for out, result in zip(n.outputs, OPS[n.op].outputs, strict=True):
            if out not in names:
                names[out] = _free(name if len(n.outputs) == 1 else f"{name}.{result}", taken.values)
        inputs = tuple(names[v] if v else NO_VALUE for v in n.inputs)
        values = dict(instance.nodes[n.own].attrs if n.own >= 0 else n.attrs)
        if "cache" in values and n.own < 0:
            values["cache"] = instance.caches[values["cache"]]
        nodes.append(Node(name, n.op, inputs, tuple(names[v] for v in n.outputs), values, instance.scope))
    return nodes, {names[r]: names[v] for r, v in p.aliases.items()}


def _fused_name(n: PlanNode, instance: Instance, taken: Names) -> str:
    if isinstance(n.named_after, int):
        wanted = instance.nodes[n.named_after].name
    else:
        wanted = f"{instance.scope}.{n.named_after}".lstrip(".")
    return _free(f"{wanted}.{n.op}" if wanted in taken.nodes else wanted, taken.nodes)


def _free(name: str, taken: set[str]) -> str:
    """`name`, or with the first number that makes it unique."""
    unique, i = name, 2
    while unique in taken:
        unique, i = f"{name}.{i}", i + 1
    taken.add(unique)
    return unique


def topological(nodes: list[Node], defined: set[str]) -> list[Node]:
    """Operands first; the order stays as it is where scopes follow each other. Raises GraphError for a cycle."""
    known, ordered, left = {NO_VALUE, *defined}, [], nodes
    while left:
        waiting = []
        for n in left:
            if known.issuperset(n.inputs):
                ordered.append(n)
                known.update(n.outputs)
            else:
                waiting.append(n)
        if len(waiting) == len(left):
            raise GraphError("operators of two scopes need each other's results", waiting[0].name,
                             "give nodes that depend on each other through another scope the same scope")
        left = waiting
    return ordered

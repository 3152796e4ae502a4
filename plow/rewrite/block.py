"""A scope's nodes with canonical names, so that layers that differ only in names are solved once.

    in_positions   a graph input keeps its name        w0, w1 ...   weights, in order of first use
    x0, x1 ...     values of other scopes              v0, v1 ...   values defined here, in program order
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from plow.errors import GraphError
from plow.graph import OPS, Graph, Node, TensorType
from plow.graph.ir import ABSENT
from plow.rewrite import schema


@dataclass
class Block:
    """nodes: canonical; types: of every canonical value; leaves: values from outside, in order of first use; roots:
    values that must exist afterwards (used elsewhere, graph outputs, results of cache appends, results nobody uses)."""

    nodes: list[Node]
    types: dict[str, TensorType]
    leaves: list[str]
    roots: list[str]

    def key(self) -> str:
        """Equal for blocks that have the same solution."""
        nodes = [(n.op, n.inputs, n.outputs, schema.attr_key(OPS[n.op], n.attrs)) for n in self.nodes]
        return repr((nodes, sorted(self.types.items()), self.leaves, self.roots))

    def values(self) -> list[str]:
        """All values: leaves, then results in program order."""
        return self.leaves + [out for n in self.nodes for out in n.outputs]


@dataclass
class Instance:
    """One scope that a block stands for. names: canonical -> actual value names; caches: canonical -> actual."""

    scope: str
    nodes: list[Node]
    names: dict[str, str] = field(default_factory=dict)
    caches: dict[str, str] = field(default_factory=dict)


def blocks_of(graph: Graph) -> Iterator[tuple[Block, Instance]]:
    """Every scope of a verified graph (types inferred), in order of first appearance."""
    users: dict[str, set[str]] = {}
    for n in graph.nodes:
        for v in n.inputs:
            users.setdefault(v, set()).add(n.scope)
    for scope, nodes in graph.scopes():
        yield _canonical(graph, scope, nodes, users)


def _canonical(graph: Graph, scope: str, nodes: list[Node], users: dict[str, set[str]]) -> tuple[Block, Instance]:
    instance = Instance(scope, nodes)
    defined = [out for n in nodes for out in n.outputs]
    to_canonical = {value: f"v{i}" for i, value in enumerate(defined)} | {ABSENT: ABSENT}
    counts = {"w": 0, "x": 0}
    for value in dict.fromkeys(v for n in nodes for v in n.inputs):
        if value in to_canonical:
            continue
        if value in graph.inputs:
            to_canonical[value] = f"in_{value}"
        else:
            letter = "w" if value in graph.weights else "x"
            to_canonical[value] = f"{letter}{counts[letter]}"
            counts[letter] += 1
    del to_canonical[ABSENT]
    instance.names = {c: v for v, c in to_canonical.items()}
    block_nodes = [_canonical_node(i, n, to_canonical | {ABSENT: ABSENT}, instance) for i, n in enumerate(nodes)]
    types = {c: graph.types[v] for v, c in to_canonical.items()}
    leaves = [c for v, c in to_canonical.items() if v not in set(defined)]
    roots = [to_canonical[v] for n in nodes for v in n.outputs
             if v in graph.outputs or users.get(v, set()) != {scope} or "cache" in n.attrs]
    return Block(block_nodes, types, leaves, roots), instance


def _canonical_node(index: int, n: Node, names: dict[str, str], instance: Instance) -> Node:
    attrs = n.attrs
    if "cache" in attrs:
        cache = f"cache{len(instance.caches)}"
        instance.caches[cache] = attrs["cache"]
        attrs = attrs | {"cache": cache}
    return replace(n, name=f"n{index}", inputs=tuple(names[v] for v in n.inputs),
                   outputs=tuple(names[v] for v in n.outputs), attrs=attrs, scope="")


def program_text(block: Block) -> str:
    """The block as egglog `let`s, with its facts: one global `$name` a value."""
    lines = []
    for leaf in block.leaves:
        lines.append(f"(let ${leaf} ({schema.VALUE} {schema.quote(leaf)}))")
        lines += _facts(leaf, block.types[leaf])
    for n in block.nodes:
        inputs = [f"${v}" if v != ABSENT else f"({schema.ABSENT_TERM})" for v in n.inputs]
        try:
            expression = schema.term(n.op, inputs, n.attrs)
        except GraphError as e:
            raise GraphError(e.what, n.name, e.fix) from None
        if len(n.outputs) == 1:
            lines.append(f"(let ${n.outputs[0]} {expression})")
        else:
            lines.append(f"(let ${n.name} {expression})")
            lines += [f"(let ${out} ({schema.OUT} ${n.name} {i}))" for i, out in enumerate(n.outputs)]
        for out in n.outputs:
            lines += _facts(out, block.types[out])
    return "\n".join(lines)


def _facts(value: str, t: TensorType) -> list[str]:
    facts = [f"(named {schema.quote(value)} ${value})", f"(set (dtype ${value}) {schema.quote(t.dtype)})"]
    if isinstance(t.shape[-1], int):
        facts.append(f"(set (width ${value}) {t.shape[-1]})")
    if len(t.shape) == 2 and isinstance(t.shape[0], int):
        facts.append(f"(set (rows ${value}) {t.shape[0]})")
    return facts

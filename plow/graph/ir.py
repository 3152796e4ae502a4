"""Graph, Node and TensorType: a straight-line SSA program over named values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

Dim = int | str
"""An extent, or a symbol: "T" rows of the step, "S" sampled rows, "C" cached positions of a sequence."""

Attrs = dict[str, Any]
ABSENT = ""
"""Name that stands for an optional input which is not given."""


@dataclass(frozen=True)
class TensorType:
    """shape: dims, outermost first. dtype: "f32" | "bf16" | "i32" | "kv" (a handle on a layer's key/value cache)."""

    shape: tuple[Dim, ...]
    dtype: str = "f32"

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(str(d) for d in self.shape)}]"

    def size(self, bindings: dict[str, int]) -> int:
        """Number of elements with symbols bound, e.g. {"T": 1, "S": 1, "C": 512}."""
        n = 1
        for d in self.shape:
            n *= d if isinstance(d, int) else bindings[d]
        return n


ITEMSIZE = {"f32": 4, "bf16": 2, "i32": 4, "kv": 4}


@dataclass(frozen=True)
class Node:
    """One operator application.

    op: key of the op table; inputs: value names in the op's order, ABSENT for an optional one that is not given;
    outputs: names of the values it defines; scope: "embed", "layer.<i>" or "head" (a rewrite never crosses scopes).
    """

    name: str
    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: Attrs = field(default_factory=dict, hash=False)
    scope: str = ""

    def with_attrs(self, **changes: Any) -> Node:
        return replace(self, attrs={**self.attrs, **changes})


@dataclass
class Graph:
    """inputs: per-step data (tokens, positions, slots, sample_rows); weights: checkpoint tensors by their HF name;
    nodes: topologically ordered; outputs: value names; types: every value's type (filled by `infer`)."""

    inputs: dict[str, TensorType]
    weights: dict[str, TensorType]
    nodes: list[Node] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    types: dict[str, TensorType] = field(default_factory=dict)
    meta: dict[str, Any] = field(default_factory=dict)

    def producer(self) -> dict[str, Node]:
        return {out: n for n in self.nodes for out in n.outputs}

    def consumers(self) -> dict[str, list[Node]]:
        users: dict[str, list[Node]] = {}
        for n in self.nodes:
            for v in dict.fromkeys(n.inputs):
                if v != ABSENT:
                    users.setdefault(v, []).append(n)
        return users

    def scopes(self) -> Iterator[tuple[str, list[Node]]]:
        """Scopes in order of first appearance, with their nodes."""
        order: dict[str, list[Node]] = {}
        for n in self.nodes:
            order.setdefault(n.scope, []).append(n)
        yield from order.items()

    def with_nodes(self, nodes: list[Node]) -> Graph:
        """A copy with other nodes; types are inferred again."""
        g = Graph(dict(self.inputs), dict(self.weights), list(nodes), list(self.outputs), {}, dict(self.meta))
        g.infer()
        return g

    def infer(self) -> None:
        """Fill `types` from the op table's shape rules. Raises GraphError naming the node."""
        from plow.graph.ops import infer_node

        self.types = {**self.inputs, **self.weights}
        for n in self.nodes:
            self.types.update(infer_node(n, self.types))

    def __str__(self) -> str:
        lines = []
        for n in self.nodes:
            outs = ", ".join(f"{o}: {self.types.get(o, '?')}" for o in n.outputs)
            args = ", ".join(v or "-" for v in n.inputs)
            attrs = " ".join(f"{k}={v}" for k, v in n.attrs.items())
            lines.append(f"{outs} = {n.op}({args}) {attrs}".rstrip())
        return "\n".join(lines)

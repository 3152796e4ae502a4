"""The IR verifier: every pass hands its graph through here."""

from __future__ import annotations

from plow.errors import GraphError
from plow.graph.ir import ABSENT, Graph
from plow.graph.ops import OPS


def verify(graph: Graph) -> Graph:
    """Check names, order, arity, attributes and types against the op table; returns the graph with fresh types.

    Raises GraphError for: a value defined twice, used before definition or of an unexpected type; an unknown,
    missing or wrongly typed attribute; an output nobody defines; a weight nobody uses; a cache appended twice.
    """
    defined = {*graph.inputs, *graph.weights}
    caches: set[str] = set()
    for node in graph.nodes:
        spec = OPS.get(node.op)
        if spec is None:
            raise GraphError(f"unknown op {node.op!r}", node.name, f"known: {', '.join(sorted(OPS))}")
        for out in node.outputs:
            if out in defined:
                raise GraphError(f"value {out!r} is defined twice", node.name)
            defined.add(out)
        for key, value in node.attrs.items():
            if key not in spec.attrs:
                raise GraphError(f"{node.op} has no attribute {key!r}", node.name, f"known: {', '.join(spec.attrs)}")
            want = spec.attrs[key].type
            if not isinstance(value, want) and not (want is float and isinstance(value, int)):
                raise GraphError(f"{node.op}.{key} must be {want.__name__}, is {value!r}", node.name)
        for key, attr in spec.attrs.items():
            if attr.default is None and key not in node.attrs:
                raise GraphError(f"{node.op}: attribute {key!r} is missing", node.name)
        if "cache" in node.attrs:
            if node.attrs["cache"] in caches:
                raise GraphError(f"cache {node.attrs['cache']!r} is appended to twice", node.name)
            caches.add(node.attrs["cache"])
    graph.infer()
    for out in graph.outputs:
        if out not in graph.types:
            raise GraphError(f"graph output {out!r} is not defined")
    used = {v for n in graph.nodes for v in n.inputs if v != ABSENT}
    unused = sorted(set(graph.weights) - used)
    if unused:
        raise GraphError(
            f"{len(unused)} weights are not used, first: {unused[0]!r}", "", "drop them from the model or use them"
        )
    return graph

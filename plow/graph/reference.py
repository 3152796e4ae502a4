"""The reference executor: runs a graph node by node with the numpy semantics of the op table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from plow.graph.ir import ABSENT, Graph
from plow.graph.ops import OPS
from plow.graph.semantics import Caches


def run(
    graph: Graph,
    weights: Mapping[str, np.ndarray],
    step: dict[str, np.ndarray],
    caches: Caches,
    dtype: Any = np.float32,
    observe: Callable[[str, Any], None] | None = None,
) -> dict[str, np.ndarray]:
    """Execute one step. weights: HF name -> array (bf16 is widened); step: the graph's inputs; caches: state carried
    from step to step. `observe(value name, array)` sees every intermediate. Returns the graph's outputs."""
    values: dict[str, Any] = dict(step)
    for node in graph.nodes:
        args = [_value(v, values, weights, dtype) for v in node.inputs]
        spec = OPS[node.op]
        attrs = dict(node.attrs)
        if "cache" in spec.attrs or "kv" in spec.input_names():
            attrs["caches"] = caches
        for name, value in zip(node.outputs, spec.reference(*args, **attrs), strict=True):
            values[name] = value
            if observe is not None:
                observe(name, value)
    return {o: values[o] for o in graph.outputs}


def _value(name: str, values: dict[str, Any], weights: Mapping[str, np.ndarray], dtype: Any) -> Any:
    if name == ABSENT:
        return None
    if name in values:
        return values[name]
    return np.asarray(weights[name]).astype(dtype, copy=False)

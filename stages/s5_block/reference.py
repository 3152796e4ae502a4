"""What every value should be: the base graph in float64, and transformers' modules on the same truncated checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from plow.checkpoint import Checkpoint
from plow.graph import Graph
from plow.graph.reference import run
from plow.graph.semantics import Caches
from plow.oracle.difference import capture_keys
from stages.subject import step_inputs

Rows = dict[str, np.ndarray]
"""Value name -> [rows, features]."""


class Exact:
    """The reference executor in float64 on a truncated checkpoint."""

    def __init__(self, graph: Graph, checkpoint: Checkpoint) -> None:
        self.graph = graph
        self.weights = {n: checkpoint.tensor(n).astype(np.float32).astype(np.float64) for n in graph.weights}

    def values(self, tokens: np.ndarray, rows: Sequence[int]) -> Rows:
        """Every value at `rows` of one sequence, keys and values of a cache as "<cache>.k" and "<cache>.v"."""
        kept: Rows = {}
        wanted = list(rows)

        def keep(name: str, value: Any) -> None:
            if isinstance(value, np.ndarray):
                kept[name] = value if self.graph.types[name].shape[0] == "S" else value[wanted]

        step = step_inputs(tokens.tolist(), rows=wanted)
        run(self.graph, self.weights, step, Caches(), np.float64, keep)
        return kept | {alias: kept[value] for alias, value in cache_values(self.graph).items()}


def cache_values(graph: Graph) -> dict[str, str]:
    """ "<cache>.k" and "<cache>.v" -> the value that the base graph appends."""
    found: dict[str, str] = {}
    for n in graph.nodes:
        if n.op == "kv_append":
            found |= {f"{n.attrs['cache']}.k": n.inputs[0], f"{n.attrs['cache']}.v": n.inputs[1]}
    return found


def captured(graph: Graph, captures: Mapping[str, np.ndarray], rows: Sequence[int]) -> Rows:
    """The same from transformers' captures of one sequence, for the values that its modules show."""
    keys = capture_keys(graph)
    keys |= {alias: keys.get(value, []) for alias, value in cache_values(graph).items()}
    found = {}
    for value, names in keys.items():
        key = next((k for k in names if k in captures), None)
        if key is not None:
            found[value] = captures[key][list(rows)]
    return found

"""Checks that need no arithmetic: config fields, weights, shapes."""

from __future__ import annotations

from typing import Any

import numpy as np

from plow.errors import PlowError
from plow.graph import Graph, verify
from plow.graph.ir import ITEMSIZE
from plow.graph.reference import run
from plow.models import check_weights
from stages.base import Check
from stages.s1_ir import geometry
from stages.s1_ir.subject import Subject
from stages.subject import random_tokens, step_inputs

ROWS, SAMPLES = 5, 2
SAFETENSORS = {"bf16": "BF16", "f32": "F32"}


def fields(s: Subject) -> list[Check]:
    config, graph = s.checkpoint.config, s.build(s.checkpoint.config)
    left = geometry.unaccounted(config, graph)
    checks = [s.check("fields_unaccounted", len(left), ", ".join(left) or f"{len(config)} fields")]
    for name, trials in (
        ("fields_missing_silent", geometry.missing_fields(config, graph, s.build)),
        ("fields_senseless_silent", geometry.senseless_fields(config, graph, s.build)),
        ("fields_without_effect", geometry.changed_fields(config, graph, s.build)),
    ):
        bad = [str(t) for t in trials if not t.ok]
        checks.append(s.check(name, len(bad), "; ".join(bad[:3]) or _tally(trials)))
    return checks


def _tally(trials: list[geometry.Trial]) -> str:
    outcomes = [t.outcome for t in trials]
    return f"{len(trials)} tried: " + ", ".join(f"{outcomes.count(o)} {o}" for o in dict.fromkeys(outcomes))


def weights(s: Subject) -> list[Check]:
    """Counted here tensor by tensor; the compiler's own check must agree."""
    want, have = s.graph.weights, s.checkpoint.tensors
    tied = {"lm_head.weight"} if s.graph.meta["tie_word_embeddings"] else set()
    wrong = [f"{n} is missing" for n in want if n not in have] + [
        f"{n} is not used" for n in have if n not in want and n not in tied
    ]
    for name in set(want) & set(have):
        if have[name].shape != want[name].shape or have[name].dtype != SAFETENSORS[want[name].dtype]:
            wrong.append(f"{name} is {have[name].dtype} {list(have[name].shape)}, the graph wants {want[name]}")
    try:
        check_weights(s.graph, s.checkpoint)
    except PlowError as e:
        wrong = wrong or [e.line()]
    total = sum(t.size({}) * ITEMSIZE[t.dtype] for t in want.values())
    return [
        s.check(
            "weights_mismatched",
            len(wrong),
            "; ".join(sorted(wrong)[:3]) or f"{len(want)} tensors, {total / 1e6:.1f} MB",
        )
    ]


def shapes(s: Subject) -> list[Check]:
    """Every value has a type by the op table's rules, and a real step agrees with it."""
    tokens = random_tokens(s.rng, s.checkpoint, ROWS)
    graph = verify(s.graph)
    wrong = [v for n in graph.nodes for v in n.outputs if v not in graph.types]
    bind = {"T": ROWS, "S": SAMPLES}

    def observe(name: str, value: Any) -> None:
        if isinstance(value, np.ndarray) and value.shape != _bound(graph, name, bind):
            wrong.append(f"{name} is {graph.types[name]}, a step gives {list(value.shape)}")

    run(graph, s.weights, step_inputs(tokens, rows=range(SAMPLES)), {}, observe=observe)
    return [s.check("values_untyped", len(wrong), "; ".join(wrong[:3]) or f"{len(graph.types)} values")]


def _bound(graph: Graph, name: str, bind: dict[str, int]) -> tuple[int, ...]:
    return tuple(d if isinstance(d, int) else bind[d] for d in graph.types[name].shape)

"""The numpy reference of every family's graph equals transformers' stored float32 logits and greedy tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from plow.checkpoint import Checkpoint
from plow.graph import Graph
from plow.graph.reference import run
from plow.graph.semantics import Caches
from plow.models import FAMILIES, bind_weights, build
from plow.oracle import goldens, metrics, tiny
from plow.oracle.difference import step_inputs
from plow.oracle.perturb import perturbations

TOLERANCE = 5e-6
"""Largest error over the largest logit: measured 2e-6, the order of float32 sums; a wrong attribute gives >= 1e-5."""


@cache
def weights_of(name: str) -> dict[str, np.ndarray]:
    config, seed = goldens.TINY[name]
    return tiny.tensors(config, seed)


def logits(graph: Graph, weights: Mapping[str, np.ndarray], tokens: list[int], dtype: Any = np.float32) -> np.ndarray:
    return run(graph, weights, step_inputs(tokens), {}, dtype)["logits"]


def test_every_family_has_a_golden_file() -> None:
    assert {config["model_type"] for config, _ in goldens.TINY.values()} == set(FAMILIES)


@pytest.mark.parametrize("name", goldens.TINY)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_logits_equal_transformers_at_every_position(name: str, dtype: type) -> None:
    golden = goldens.load_tiny(name)
    for text, want in zip(golden.texts, golden.logits, strict=True):
        assert metrics.max_rel_error(want, logits(build(golden.config), weights_of(name), text, dtype)) < TOLERANCE


@pytest.mark.parametrize("name", goldens.TINY)
def test_greedy_tokens_equal_transformers_step_by_step(name: str) -> None:
    """Prompt in one step, then one token a step: also crosses the sliding windows with a cache."""
    golden = goldens.load_tiny(name)
    graph, weights = build(golden.config), weights_of(name)
    for text, want in zip(golden.texts, golden.greedy, strict=True):
        caches: Caches = {}
        step, got = step_inputs(text, [len(text) - 1]), []
        for position in range(len(text), len(text) + len(want)):
            got.append(int(run(graph, weights, step, caches)["logits"][0].argmax()))
            step = step_inputs(got[-1:]) | {"positions": np.array([position], np.int32)}
        assert got == want


@pytest.mark.parametrize("name", goldens.TINY)
def test_every_changed_attribute_departs_from_transformers(name: str) -> None:
    """eps * 10 is below what a float32 logit shows beside a mean square of 1: it is judged in float64, against the
    unchanged graph."""
    golden = goldens.load_tiny(name)
    graph, weights = build(golden.config), weights_of(name)
    text, want = golden.texts[-1], golden.logits[-1]
    exact = logits(graph, weights, text, np.float64)
    seen = set()
    for p in perturbations(graph):
        if p.attribute == "tie" and set(p.graph.weights) - set(weights):
            continue  # untying needs a tensor that is not there: the weight check's business
        changed = logits(p.graph, weights, text, np.float64)
        error = metrics.max_rel_error(want, changed) if p.attribute != "eps" else np.inf
        assert error > TOLERANCE and metrics.max_abs_error(exact, changed) > 1e-8, (p.node, p.attribute, p.value)
        seen.add(p.attribute)
    assert {"eps", "theta", "scaling", "rotary_dim", "scale", "window", "softcap", "act", "zero_centered"} <= seen


def test_forgetting_the_norms_of_q_and_k_departs_from_transformers() -> None:
    golden = goldens.load_tiny("tiny-qwen3")
    graph, weights = build(golden.config), weights_of("tiny-qwen3")
    nodes = [
        replace(n, inputs=(n.inputs[0].replace("_norm", "_proj"), *n.inputs[1:])) if n.op == "rope" else n
        for n in graph.nodes
        if not n.name.endswith(("q_norm", "k_norm"))
    ]
    text, want = golden.texts[-1], golden.logits[-1]
    assert len(graph.nodes) - len(nodes) == 4
    assert metrics.max_rel_error(want, logits(graph.with_nodes(nodes), weights, text)) > 0.01
    assert metrics.max_rel_error(want, logits(graph, weights, text)) < TOLERANCE


@pytest.mark.parametrize("fixture", ["tiny_llama", "tiny_gemma3", "tiny_qwen3"])
def test_the_fixtures_are_the_goldens_checkpoints(fixture: str, request: pytest.FixtureRequest) -> None:
    checkpoint = Checkpoint.open(request.getfixturevalue(fixture))
    for name, w in weights_of(fixture.replace("_", "-")).items():
        assert np.array_equal(w.view(np.uint16), checkpoint.tensor(name).view(np.uint16))


@pytest.mark.real
@pytest.mark.parametrize(("fixture", "prompts"), [("demo_smollm2", 20), ("demo_gemma3", 20)])
def test_real_greedy_tokens_equal_transformers(fixture: str, prompts: int, request: pytest.FixtureRequest) -> None:
    """Teacher-forced: given the golden tokens so far, the argmax is the next one at all 64 positions."""
    path: Path = request.getfixturevalue(fixture)
    golden = goldens.load_real(path.name)
    checkpoint = Checkpoint.open(path)
    assert checkpoint.digest(full=True) == golden["checkpoint"]
    graph = build(checkpoint.config)
    weights = {k: np.asarray(v).astype(np.float32) for k, v in bind_weights(graph, checkpoint).items()}
    for p in golden["prompts"][:prompts]:
        tokens = p["ids"] + p["greedy"][:-1]
        rows = list(range(len(p["ids"]) - 1, len(tokens)))
        got = run(graph, weights, step_inputs(tokens, rows), {})["logits"]
        assert got.argmax(axis=-1).tolist() == p["greedy"], p["text"]
        assert np.abs(metrics.margins(got) - np.array(p["margins"])).max() < 2e-3, p["text"]


@pytest.mark.real
@pytest.mark.parametrize("fixture", ["demo_smollm2", "demo_gemma3"])
def test_real_logit_slices_equal_transformers(fixture: str, request: pytest.FixtureRequest) -> None:
    path: Path = request.getfixturevalue(fixture)
    golden, checkpoint = goldens.load_real(path.name), Checkpoint.open(path)
    graph = build(checkpoint.config)
    weights = bind_weights(graph, checkpoint)
    for s in golden["slices"]:
        ids = golden["prompts"][s["prompt"]]["ids"]
        got = run(graph, weights, step_inputs(ids, s["rows"]), {})["logits"][:, s["ids"]]
        assert metrics.max_abs_error(np.array(s["logits"]), got) < 1e-3

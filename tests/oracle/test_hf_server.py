"""transformers itself: the goldens are what it says, and graphs agree with it operator by operator."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from plow.checkpoint import Checkpoint
from plow.graph.reference import run
from plow.models import bind_weights, build
from plow.oracle import goldens, metrics
from plow.oracle.client import HFOracle, OracleError
from plow.oracle.difference import compared, first_difference, step_inputs
from plow.oracle.perturb import perturbations

pytestmark = pytest.mark.oracle


@pytest.fixture(scope="module", params=["tiny_llama", "tiny_gemma3", "tiny_qwen3"])
def oracle(request: pytest.FixtureRequest) -> Iterator[tuple[str, Path, HFOracle]]:
    path: Path = request.getfixturevalue(request.param)
    with HFOracle(path) as o:
        yield request.param.replace("_", "-"), path, o


@pytest.mark.parametrize("name", goldens.TINY)
def test_tiny_goldens_are_what_transformers_computes(name: str, tmp_path: Path) -> None:
    assert goldens.differences(name, tmp_path) == []


def test_logits_of_chosen_rows_are_those_of_all(oracle: tuple[str, Path, HFOracle]) -> None:
    o = oracle[2]
    every = o.logits([5, 6, 7, 8, 9])
    assert every.dtype == np.float32 and np.array_equal(o.logits([5, 6, 7, 8, 9], [0, 4]), every[[0, 4]])


def test_greedy_with_a_cache_equals_argmax_without_one(oracle: tuple[str, Path, HFOracle]) -> None:
    o, tokens = oracle[2], [5, 6, 7]
    greedy = o.greedy(tokens, 12)
    assert len(greedy.tokens) == len(greedy.margins) == 12
    again = o.logits(tokens + greedy.tokens[:-1], list(range(2, 14)))
    assert again.argmax(axis=-1).tolist() == greedy.tokens
    assert metrics.margins(again) == pytest.approx(greedy.margins, abs=1e-4)


@pytest.mark.parametrize("length", [1, 2, 9, 63])
def test_the_reference_equals_transformers(oracle: tuple[str, Path, HFOracle], length: int) -> None:
    """63 tokens cross the sliding window of 8 many times."""
    _, path, o = oracle
    checkpoint = Checkpoint.open(path)
    graph = build(checkpoint.config)
    tokens = np.random.RandomState(length).randint(4, 320, length).tolist()
    for dtype in (np.float32, np.float64):
        got = run(graph, bind_weights(graph, checkpoint), step_inputs(tokens), {}, dtype)["logits"]
        assert metrics.max_rel_error(o.logits(tokens), got) < 5e-6


def test_every_operator_agrees_and_every_perturbation_is_named(oracle: tuple[str, Path, HFOracle]) -> None:
    _, path, o = oracle
    checkpoint = Checkpoint.open(path)
    graph = build(checkpoint.config)
    weights = bind_weights(graph, checkpoint)
    tokens = np.random.RandomState(3).randint(4, 320, 21).tolist()
    captures, attributes = o.capture(tokens), o.attributes()
    assert first_difference(graph, weights, captures, tokens, attributes, tolerance=5e-6) is None
    assert {n.op for n in graph.nodes if n.outputs[0] not in compared(graph, captures)} == {"kv_append"}
    for p in perturbations(graph):
        if set(p.graph.weights) <= set(weights):
            found = first_difference(p.graph, weights, captures, tokens, attributes)
            assert found is not None and found.node == p.node, (p.node, p.attribute, p.value, found)


def test_captures_can_be_limited_to_some_blocks(oracle: tuple[str, Path, HFOracle]) -> None:
    some = oracle[2].capture([5, 6, 7], layers=[1])
    assert any(k.startswith("model.layers.1.") for k in some)
    assert not any(k.startswith("model.layers.0.") for k in some)


def test_timed_calls_return_what_they_computed(oracle: tuple[str, Path, HFOracle]) -> None:
    o, tokens = oracle[2], [5, 6, 7, 8]
    decode, prefill = o.time_decode(tokens, 5, repeats=2), o.time_prefill(tokens, repeats=3)
    assert [len(r) for r in decode["seconds"]] == [5, 5] and min(map(min, decode["seconds"])) > 0
    greedy = o.greedy(tokens, 5).tokens
    assert decode["tokens"] == greedy and prefill["next"] == greedy[0] and len(prefill["seconds"]) == 3


def test_bfloat16_is_near_and_not_equal(oracle: tuple[str, Path, HFOracle]) -> None:
    _, path, o = oracle
    with HFOracle(path, dtype="bfloat16") as low:
        error = metrics.max_rel_error(o.logits([5, 6, 7]), low.logits([5, 6, 7]))
    assert 1e-4 < error < 0.3


def test_a_bad_request_and_a_bad_checkpoint_are_typed_errors(
    oracle: tuple[str, Path, HFOracle], tmp_path: Path
) -> None:
    with pytest.raises(OracleError, match="IndexError"):
        oracle[2].logits([5, 6], rows=[9])
    assert oracle[2].logits([5, 6]).shape == (2, 320), "the process survives a bad request"
    with pytest.raises(OracleError):
        HFOracle(tmp_path)


@pytest.mark.real
@pytest.mark.parametrize(("fixture", "length"), [("demo_smollm2", 17), ("demo_gemma3", 17), ("demo_gemma3", 530)])
def test_real_logits_equal_transformers(fixture: str, length: int, request: pytest.FixtureRequest) -> None:
    """530 tokens cross Gemma's window of 512."""
    path: Path = request.getfixturevalue(fixture)
    checkpoint = Checkpoint.open(path)
    graph = build(checkpoint.config)
    tokens = np.random.RandomState(0).randint(3, graph.meta["vocab_size"], length).tolist()
    rows = [0, length // 2, length - 1]
    got = run(graph, bind_weights(graph, checkpoint), step_inputs(tokens, rows), {})["logits"]
    with HFOracle(path) as o:
        assert metrics.max_abs_error(o.logits(tokens, rows), got) < 1e-3

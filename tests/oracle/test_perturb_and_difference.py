"""A changed attribute is found, and the operator that carries it is named."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from plow.checkpoint import Checkpoint
from plow.errors import CheckpointError
from plow.graph import OPS, Graph, Node, TensorType, verify
from plow.graph.reference import run
from plow.models import bind_weights, build, check_weights
from plow.oracle.difference import Difference, capture_keys, compared, first_difference, step_inputs
from plow.oracle.perturb import CHANGES, STRUCTURAL, perturbations

TOKENS = np.random.RandomState(7).randint(4, 320, 21).tolist()
Subject = tuple[Graph, Any, dict[str, np.ndarray], dict[str, dict[str, Any]]]


def recorded(graph: Graph, weights: Any) -> dict[str, np.ndarray]:
    """Captures as transformers would give them, recorded from the graph's own run."""
    values: dict[str, Any] = {}
    run(graph, weights, step_inputs(TOKENS), {}, observe=values.__setitem__)
    return {k: values[v] for v, keys in capture_keys(graph).items() for k in keys if v in values}


def held(graph: Graph) -> dict[str, dict[str, Any]]:
    """Scalars as transformers' modules would hold them."""
    out: dict[str, dict[str, Any]] = {}
    for n in graph.nodes:
        if n.op == "rms_norm":
            out[n.inputs[1].removesuffix(".weight")] = {"eps": n.attrs["eps"]}
        if n.op == "attention":
            name = f"model.layers.{n.scope.split('.')[1]}.self_attn"
            out[name] = {"scaling": n.attrs["scale"], "layer_type": "", "sliding_window": n.attrs["window"]}
    return out


@pytest.fixture(params=["tiny_llama", "tiny_gemma3", "tiny_qwen3"])
def subject(request: pytest.FixtureRequest) -> Subject:
    path: Path = request.getfixturevalue(request.param)
    checkpoint = Checkpoint.open(path)
    graph = build(checkpoint.config)
    weights = bind_weights(graph, checkpoint)
    return graph, weights, recorded(graph, weights), held(graph)


def test_every_attribute_of_every_base_operator_is_perturbed_or_structural() -> None:
    for spec in OPS.values():
        if not spec.fused:
            assert set(spec.attrs) <= set(CHANGES) | set(STRUCTURAL), spec.name


def test_the_unchanged_graph_has_no_difference_and_is_compared_almost_everywhere(subject: Subject) -> None:
    graph, weights, captures, attributes = subject
    assert first_difference(graph, weights, captures, TOKENS, attributes) is None
    unseen = {n.op for n in graph.nodes if n.outputs[0] not in compared(graph, captures)}
    assert unseen == {"kv_append"}, "the cache is a handle; its contents show in the attention that reads it"


def test_every_perturbation_is_named(subject: Subject) -> None:
    graph, weights, captures, attributes = subject
    for p in perturbations(graph):
        if p.attribute == "tie" and not set(p.graph.weights) <= set(weights):
            continue
        found = first_difference(p.graph, weights, captures, TOKENS, attributes)
        assert found is not None and found.node == p.node, (p.node, p.attribute, p.value, found)


def test_perturbed_graphs_are_valid_and_differ_in_one_node(subject: Subject) -> None:
    graph = subject[0]
    for p in perturbations(graph):
        verify(p.graph)
        assert [a.name for a, b in zip(graph.nodes, p.graph.nodes, strict=True) if a != b] == [p.node]


def test_every_node_of_every_layer_can_be_asked_for(subject: Subject) -> None:
    graph = subject[0]
    some, every = list(perturbations(graph)), list(perturbations(graph, every_node=True))
    assert len(every) > len(some)
    assert {p.node for p in every} >= {n.name for n in graph.nodes if set(n.attrs) - set(STRUCTURAL)}


def test_untying_a_tied_head_is_caught_by_the_weight_check(tiny_gemma3: Path) -> None:
    checkpoint = Checkpoint.open(tiny_gemma3)
    flipped = next(p for p in perturbations(build(checkpoint.config)) if p.attribute == "tie")
    with pytest.raises(CheckpointError, match=r"lm_head.weight' is missing"):
        check_weights(flipped.graph, checkpoint)


def test_an_attribute_that_no_number_shows_is_found_by_comparing_attributes(subject: Subject) -> None:
    """A window longer than the text changes nothing in the numbers."""
    graph, weights, captures, attributes = subject
    i = next(i for i, n in enumerate(graph.nodes) if n.op == "attention" and not n.attrs["window"])
    wide = graph.with_nodes([*graph.nodes[:i], graph.nodes[i].with_attrs(window=1000), *graph.nodes[i + 1 :]])
    assert first_difference(wide, weights, captures, TOKENS) is None
    found = first_difference(wide, weights, captures, TOKENS, attributes)
    assert found is not None and found.node == graph.nodes[i].name and "sliding_window" in found.capture


def test_a_wrong_operand_is_named_at_its_operator(subject: Subject) -> None:
    """The up projection reads the residual instead of the norm: the graph is valid, the result is wrong."""
    graph, weights, captures, attributes = subject
    nodes = [
        replace(n, inputs=("layer.1.attention_residual", *n.inputs[1:])) if n.name == "layer.1.up_proj" else n
        for n in graph.nodes
    ]
    found = first_difference(graph.with_nodes(nodes), weights, captures, TOKENS, attributes)
    assert isinstance(found, Difference) and found.node == "layer.1.up_proj"


def test_a_nan_in_a_result_is_a_difference() -> None:
    graph = Graph({"tokens": TensorType(("T",), "i32")}, {"e.weight": TensorType((320, 4), "bf16")})
    graph.nodes = [Node("embed.e", "embed", ("tokens", "e.weight"), ("logits",), {"scale": 1.0}, "embed")]
    graph.outputs = ["logits"]
    table = np.full((320, 4), np.nan, np.float32)
    found = first_difference(verify(graph), {"e.weight": table}, {"e.out": np.zeros((21, 4), np.float32)}, TOKENS)
    assert found is not None and found.error == np.inf

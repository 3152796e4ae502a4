"""The numeric check has power: wrong rules and damaged graphs are seen, right ones pass."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from plow import hw
from plow.errors import GraphError
from plow.graph import Graph, TensorType, verify
from plow.rewrite import check_numerics, fuse, rewrite
from plow.rewrite.numerics import EXACT, random_steps, random_weights
from plow.rewrite.samples import POST_NORM, PRE_NORM, Shape, decoder
from plow.rewrite.selftest import PLANTED, planted, self_test

CPU = hw.load("cpu")
BIND = {"T": 1, "S": 1, "C": 64}


def test_self_test_catches_all_planted_rules_and_passes_all_controls() -> None:
    result = self_test()
    assert [c for c in result["cases"] if not c["ok"]] == []
    assert result["planted"] == result["caught"] == result["controls"] == result["controls_green"] == len(PLANTED)


def test_a_planted_rule_that_does_not_reach_the_graph_is_not_called_caught() -> None:
    case = replace(planted()[0], shape=Shape(bias=True), variant=fuse("(softcap x)", "(softcap x cap=1.0)"))
    assert not case.caught() and not replace(case, right=("norm_add",)).control()


def test_a_planted_rule_that_is_refused_for_another_reason_is_not_called_caught() -> None:
    equated = next(p for p in planted() if p.refused)
    assert equated.caught()
    assert not replace(equated, refused="").caught() and not replace(equated, refused="something else").caught()
    assert not replace(planted()[0], refused="unused").caught()


@pytest.mark.parametrize(("op", "attrs"), [
    ("rms_norm", {"eps": 2e-5}), ("rms_norm", {"zero_centered": True}), ("rope", {"theta": 5001.0}),
    ("attention", {"scale": 0.26}), ("attention", {"window": 4}), ("attention", {"softcap": 50.0}),
    ("activation", {"act": "gelu_tanh"}), ("embed", {"scale": 1.01}),
])
def test_a_changed_attribute_is_seen(op: str, attrs: dict[str, object]) -> None:
    graph = decoder(PRE_NORM)
    changed = verify(graph.with_nodes([n.with_attrs(**attrs) if n.op == op else n for n in graph.nodes]))
    assert check_numerics(graph, changed) > EXACT
    assert check_numerics(graph, decoder(PRE_NORM)) == 0


def test_the_first_sequence_goes_beyond_every_window() -> None:
    steps = random_steps(decoder(POST_NORM))
    assert steps[0]["positions"].max() > 8 and set(steps[0]["slots"]) == {0, 1}
    wider = verify(decoder(POST_NORM).with_nodes(
        [n.with_attrs(window=9) if n.attrs.get("window") == 8 else n for n in decoder(POST_NORM).nodes]))
    assert check_numerics(decoder(POST_NORM), wider) > EXACT
    assert check_numerics(decoder(POST_NORM), wider, longest=6) == 0, "a capped run does not reach the window"


def test_a_value_that_is_not_a_number_is_infinitely_wrong() -> None:
    graph = decoder()
    weights = random_weights(graph)
    weights["layer.0.down_proj.weight"][0, 0] = np.nan
    assert check_numerics(graph, rewrite(graph, CPU, BIND).graph, weights) == float("inf")


def test_a_missing_cache_or_output_is_infinitely_wrong() -> None:
    graph = decoder()
    renamed = graph.with_nodes([n.with_attrs(cache="other") if "cache" in n.attrs else n for n in graph.nodes])
    assert check_numerics(graph, renamed) == float("inf")
    fewer = Graph(graph.inputs, graph.weights, graph.nodes, [])
    assert check_numerics(graph, fewer) == float("inf")


def test_an_unknown_step_input_is_a_typed_error() -> None:
    graph = decoder()
    graph.inputs["page_table"] = TensorType(("T",), "i32")
    with pytest.raises(GraphError, match="no random data"):
        random_steps(graph)


def test_random_weights_depend_on_the_seed_only() -> None:
    a, b, c = (random_weights(decoder(Shape()), seed) for seed in (1, 1, 2))
    assert all(np.array_equal(a[k], b[k]) for k in a) and not any(np.array_equal(a[k], c[k]) for k in a)

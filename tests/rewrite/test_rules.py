"""Every rule fires on its pattern and not on its look-alikes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from plow import hw
from plow.errors import GraphError
from plow.graph import Graph, TensorType, verify
from plow.rewrite import RULES, Rewritten, Rule, check_numerics, fuse, rewrite
from plow.rewrite.rule import check_rule
from plow.rewrite.samples import POST_NORM, PRE_NORM, SCALED, Shape, Sketch, decoder
from plow.rewrite.selftest import PLANTED

CPU = hw.load("cpu")
BIND = {"T": 1, "S": 1, "C": 64}


def solve(graph: Graph, **kw: Any) -> Rewritten:
    return rewrite(graph, CPU, BIND, **kw)


def edit(graph: Graph, node: str, *, inputs: dict[str, str] | None = None, scope: str | None = None,
         **attrs: Any) -> Graph:
    """The graph with one node changed: inputs renamed, attributes replaced, moved to another scope."""
    assert any(n.name == node for n in graph.nodes)
    nodes = []
    for n in graph.nodes:
        if n.name == node:
            n = replace(n, inputs=tuple((inputs or {}).get(v, v) for v in n.inputs), attrs={**n.attrs, **attrs},
                        scope=n.scope if scope is None else scope)
        nodes.append(n)
    return verify(graph.with_nodes(nodes))


FIRES = sorted({(p.right[-1], p.shape) for p in PLANTED}, key=repr)


@pytest.mark.parametrize(("rule", "shape"), FIRES, ids=lambda v: v if isinstance(v, str) else "")
def test_a_rule_fires_on_its_pattern(rule: str, shape: Shape) -> None:
    result = solve(decoder(shape))
    assert result.fired[rule] > 0
    assert f'"{rule}.0"' in result.egglog_text


def test_every_rule_has_a_graph_on_which_it_must_fire() -> None:
    assert {rule for p in PLANTED for rule in p.right} == set(RULES)


def two_norms() -> Graph:
    """k projects rows that another weight has normalised."""
    graph = decoder()
    norm = next(n for n in graph.nodes if n.name == "layer.0.input_norm")
    other = replace(norm, name="other", inputs=(norm.inputs[0], "other.weight"), outputs=("other",))
    graph.weights["other.weight"] = graph.weights["layer.0.input_norm.weight"]
    graph.nodes.insert(graph.nodes.index(norm), other)
    return edit(graph, "layer.0.k_proj", inputs={"layer.0.input_norm": "other"})


TWO_NORMS = two_norms()
NO_ACTIVATION = edit(decoder(), "layer.0.mul", inputs={"layer.0.act": "layer.0.gate_proj"})
K_NORM_SKIPPED = {"layer.0.k_norm": "layer.0.k_proj"}
LOOK_ALIKES: dict[str, tuple[str, Graph]] = {
    "q and k norms with different eps": ("qkv_qk_norm", edit(decoder(POST_NORM), "layer.0.k_norm", eps=1e-3)),
    "q and k norms, one zero-centred": (
        "qkv_qk_norm", edit(decoder(POST_NORM), "layer.0.k_norm", zero_centered=False)),
    "q and k rotated with different theta": ("qkv", edit(decoder(), "layer.0.k_rope", theta=1.0)),
    "k rotated by something else than its position": (
        "qkv", edit(decoder(), "layer.0.k_rope", inputs={"positions": "slots"})),
    "k appended at another position": ("qkv", edit(decoder(), "layer.0.kv", inputs={"positions": "slots"})),
    "v projects something else": (
        "qkv", edit(decoder(), "layer.0.v_proj", inputs={"layer.0.input_norm": "embed.tokens"})),
    "up projects something else": (
        "gated_linear", edit(decoder(), "layer.0.up_proj", inputs={"layer.0.mlp_norm": "layer.0.attention_residual"})),
    "projections with bias": ("qkv", decoder(Shape(bias=True))),
    "no activation before the product": ("act_mul", NO_ACTIVATION),
    "another activation than silu or gelu": ("gated_linear", NO_ACTIVATION),
    "q and k project differently normalised rows": ("qkv", TWO_NORMS),
    "only q has a head norm": ("qkv_qk_norm", edit(decoder(POST_NORM), "layer.0.k_rope", inputs=K_NORM_SKIPPED)),
    "only k is rotated": ("qkv", edit(decoder(), "layer.0.attention", inputs={"layer.0.q_rope": "layer.0.q_proj"})),
    "residual of something that is no projection": ("linear_add", decoder(POST_NORM)),
    "residual of something that is no norm": ("norm_add", decoder(PRE_NORM)),
    "only one factor": ("scale_scale", decoder(Shape(scales=(2.0,)))),
}


@pytest.mark.parametrize("case", LOOK_ALIKES)
def test_a_rule_does_not_fire_on_a_look_alike(case: str) -> None:
    rule, graph = LOOK_ALIKES[case]
    layers = {b.scopes: b.fired.get(rule, 0) for b in solve(graph).blocks if "layer.0" in b.scopes}
    assert list(layers.values()) == [0]


def test_grouping_stays_off_while_rope_differs_but_other_fusions_go_on() -> None:
    graph = edit(decoder(), "layer.0.k_rope", theta=1.0)
    result = solve(graph)
    assert "qkv" not in result.chosen and result.chosen["norm_gated_linear"] == 1
    assert check_numerics(graph, result.graph) == 0


def test_pre_norm_of_another_flavour_is_not_merged_into_a_grouped_projection_with_head_norms() -> None:
    graph = edit(decoder(POST_NORM), "layer.0.input_norm", zero_centered=False)
    result = solve(graph)
    assert result.fired["norm_qkv"] == 1  # layer.1 only
    qkv = next(n for n in result.graph.nodes if n.name == "layer.0.qkv")
    assert qkv.inputs[1] == "" and check_numerics(graph, result.graph) == 0


def test_projections_with_bias_stay_as_they_are() -> None:
    graph = decoder(Shape(bias=True))
    result = solve(graph)
    kept = [n.name for n in result.graph.nodes if n.op == "linear"]
    assert kept == ["layer.0.q_proj", "layer.0.k_proj", "layer.0.v_proj", "layer.0.o_proj"]
    assert check_numerics(graph, result.graph) == 0


def test_a_norm_in_another_scope_is_not_fused() -> None:
    graph = edit(decoder(), "layer.0.mlp_norm", scope="between")
    result = solve(graph)
    assert result.fired["norm_gated_linear"] == 0 and result.chosen["gated_linear"] == 1
    assert any(n.name == "layer.0.mlp_norm" and n.op == "rms_norm" for n in result.graph.nodes)


def test_a_per_head_norm_is_not_fused_into_a_projection() -> None:
    def graph(width: int) -> Graph:
        g = Sketch()
        x = g.op("x", "embed", "tokens", g.weight("table", 10, 32), scale=1.0)
        h = g.op("h", "rms_norm", x, g.weight("n", width), eps=1e-5, zero_centered=False)
        return g.graph(g.linear("y", h, 32, 48))

    assert solve(graph(32)).fired["norm_linear"] == 1
    assert solve(graph(8)).fired["norm_linear"] == 0


def test_weights_of_different_types_are_not_grouped() -> None:
    graph = decoder()
    graph.weights["layer.0.up_proj.weight"] = TensorType((48, 32), "f32")
    result = solve(verify(graph))
    assert result.fired["gated_linear"] == 0 and result.fired["act_mul"] == 1
    assert check_numerics(graph, result.graph) == 0


@pytest.mark.parametrize("order", [("r", "y"), ("y", "r")])
def test_the_residual_may_stand_on_either_side(order: tuple[str, str]) -> None:
    g = Sketch()
    r = g.op("r", "embed", "tokens", g.weight("table", 10, 32), scale=1.0)
    y = g.linear("y", r, 32, 32)
    graph = g.graph(g.op("z", "add", *({"r": r, "y": y}[o] for o in order)))
    result = solve(graph)
    assert [n.op for n in result.graph.nodes] == ["embed", "linear_add"]
    assert check_numerics(graph, result.graph) == 0


def test_the_activation_may_stand_on_either_side_and_keeps_its_kind() -> None:
    graph = decoder(Shape(act="gelu_tanh"))
    mul = next(n for n in graph.nodes if n.name == "layer.0.mul")
    swapped = verify(graph.with_nodes([replace(n, inputs=n.inputs[::-1]) if n is mul else n for n in graph.nodes]))
    for g in (graph, swapped):
        result = solve(g)
        fused = next(n for n in result.graph.nodes if n.op == "norm_gated_linear")
        assert fused.attrs["act"] == "gelu_tanh"
        assert fused.inputs[2:] == ("layer.0.gate_proj.weight", "layer.0.up_proj.weight")
        assert check_numerics(g, result.graph) == 0


def test_a_product_of_two_activations_takes_one_of_them() -> None:
    g = Sketch()
    x = g.op("x", "embed", "tokens", g.weight("table", 10, 32), scale=1.0)
    a, b = g.op("a", "activation", x, act="silu"), g.op("b", "activation", x, act="gelu_tanh")
    graph = g.graph(g.op("z", "mul", a, b))
    result = solve(graph)
    assert result.fired["act_mul"] == 2 and result.chosen["act_mul"] == 1
    assert check_numerics(graph, result.graph) == 0


def test_scales_fold_into_the_embedding() -> None:
    graph = decoder(SCALED)
    result = solve(graph)
    embed = result.graph.nodes[0]
    assert embed.op == "embed" and embed.attrs["scale"] == pytest.approx(2.1, rel=1e-15)
    assert not any(n.op == "scale" for n in result.graph.nodes)
    assert RULES["embed_scale"].kind == "reassociation" and check_numerics(graph, result.graph) < 1e-12


@pytest.mark.parametrize("rule", sorted(RULES))
def test_a_disabled_rule_is_not_in_the_program_and_not_in_the_graph(rule: str) -> None:
    for shape in (PRE_NORM, POST_NORM, SCALED):
        graph = decoder(shape)
        result = solve(graph, disabled=frozenset({rule}))
        assert rule not in result.fired and f'"{rule}.0"' not in result.egglog_text
        assert not any(rule in f.rules for b in result.blocks for f in b.fusions)
        assert check_numerics(graph, result.graph) < 1e-12


@pytest.mark.parametrize(("rule", "shape", "op"), [
    ("qkv", PRE_NORM, "qkv"), ("qkv_qk_norm", POST_NORM, "qkv"), ("linear_add", PRE_NORM, "linear_add"),
    ("norm_add", POST_NORM, "norm_add"), ("gated_linear", PRE_NORM, "norm_gated_linear"),
])
def test_disabling_a_rule_changes_the_graph(rule: str, shape: Shape, op: str) -> None:
    assert op in solve(decoder(shape)).chosen
    assert op not in solve(decoder(shape), disabled=frozenset({rule})).chosen


def test_without_grouping_head_norms_are_fused_with_rope() -> None:
    assert solve(decoder(POST_NORM), disabled=frozenset({"qkv_qk_norm"})).chosen["norm_rope"] == 4


def test_an_unknown_rule_name_is_a_typed_error() -> None:
    with pytest.raises(GraphError, match="no rule is called 'norm_liner'"):
        solve(decoder(), disabled=frozenset({"norm_liner"}))


@pytest.mark.parametrize(("lhs", "rhs", "message"), [
    ("(linear (rms_norm x n) w)", "(norm_linear x n v)", "unbound variable 'v'"),
    ("(linear x)", "(linear x)", "operand 'weight' is missing"),
    ("(linear x w", "(linear x w)", "closing parenthesis"),
    ("(linaer x w)", "(linear x w)", "unknown op 'linaer'"),
    ("(scale x faktor=f)", "(scale x factor=1.0)", "no attribute 'faktor'"),
    ("(mul a b)", "(scale a)", "leaves scale.factor open"),
    ("(add y x)", "(add x x)", "inside the pattern of its own root"),
    ("(mul a b) c", "(mul a b)", "text after its end"),
])
def test_a_malformed_rule_is_an_error_when_it_is_made(lhs: str, rhs: str, message: str) -> None:
    with pytest.raises(GraphError, match=message):
        check_rule(Rule("bad", "", "exact", "linear", "linear", (fuse(lhs, rhs),)))

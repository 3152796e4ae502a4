"""The price of an operator is a roofline plus packet and hop."""

from __future__ import annotations

from dataclasses import replace

import pytest

from plow import hw
from plow.cost import graph_seconds, op_price, op_seconds, price_table
from plow.errors import GraphError
from plow.graph import OPS, Graph, Node, TensorType, verify

MACHINE = hw.Machine("m", 2, read_bytes_per_s=1e9, fp32_flops=1e9, bf16_flops=1e10, hop_s=1e-6, packet_s=1e-7)
LINEAR = [TensorType(("T", 64)), TensorType((128, 64), "bf16"), None]


def test_one_row_is_bound_by_the_bytes_of_the_weight() -> None:
    p = op_price(replace(MACHINE, fp32_flops=1e12), "linear", LINEAR, {}, {"T": 1, "S": 1, "C": 1})
    moved = 64 * 4 + 128 * 64 * 2 + 128 * 4
    assert p.bytes == moved and p.bound == "memory"
    assert p.seconds == pytest.approx(moved / 1e9 + 1.1e-6)


def test_many_rows_are_bound_by_arithmetic() -> None:
    bind = {"T": 512, "S": 1, "C": 1}
    p = op_price(MACHINE, "linear", LINEAR, {}, bind)
    assert p.flops == 2 * 512 * 64 * 128 and p.bound == "compute"
    assert op_seconds(MACHINE, "linear", LINEAR, {}, bind) == p.seconds == pytest.approx(p.flops / 1e9 + 1.1e-6)


def test_a_tiny_operator_costs_its_packet_and_hop() -> None:
    p = op_price(MACHINE, "add", [TensorType(("T", 8))] * 2, {}, {"T": 1})
    assert p.bound == "overhead" and p.overhead_s == pytest.approx(1.1e-6)


def test_matrix_units_serve_projections_and_fused_projections_only() -> None:
    gpu, bind = replace(MACHINE, matmul="bf16"), {"T": 512, "S": 1, "C": 1}
    x = TensorType(("T", 64))
    operands = {"linear": LINEAR, "norm_linear": [x, TensorType((64,)), LINEAR[1]], "add": [x, x]}
    ratio = {op: op_price(MACHINE, op, types, {"eps": 1e-5}, bind).compute_s
             / op_price(gpu, op, types, {"eps": 1e-5}, bind).compute_s for op, types in operands.items()}
    assert ratio == pytest.approx({"linear": 10, "norm_linear": 10, "add": 1})


def test_a_window_bounds_the_cache_that_attention_reads() -> None:
    types = [TensorType(("T", 64)), TensorType(("C", 64), "kv"), TensorType(("T",), "i32"), TensorType(("T",), "i32")]
    attrs = {"num_heads": 4, "num_kv_heads": 2, "head_dim": 16, "scale": 0.25, "softcap": 0.0}
    bind = {"T": 1, "S": 1, "C": 1024}
    all_, some, wide = (op_seconds(MACHINE, "attention", types, attrs | {"window": w}, bind) for w in (0, 128, 4096))
    assert some < all_ == wide


def test_a_graph_costs_the_sum_of_its_nodes() -> None:
    nodes = [Node("a", "scale", ("x",), ("a",), {"factor": 2.0}, "s"), Node("b", "add", ("a", "x"), ("b",), {}, "s")]
    graph = verify(Graph({"x": TensorType(("T", 8))}, {}, nodes, ["b"]))
    rows = price_table(graph, MACHINE, {"T": 4})
    assert [(r.node, r.op, r.scope) for r in rows] == [("a", "scale", "s"), ("b", "add", "s")]
    assert graph_seconds(graph, MACHINE, {"T": 4}) == sum(r.seconds for r in rows)


@pytest.mark.parametrize(("op", "bind", "message"), [
    ("linaer", {"T": 1}, "unknown op"), ("linear", {"S": 1}, "'T' is not bound"),
])
def test_an_unknown_op_or_unbound_symbol_is_a_typed_error(op: str, bind: dict[str, int], message: str) -> None:
    with pytest.raises(GraphError, match=message):
        op_seconds(MACHINE, op, LINEAR, {}, bind)


def test_every_operator_of_the_table_states_its_work() -> None:
    assert all(callable(spec.flops) and callable(spec.infer) for spec in OPS.values())

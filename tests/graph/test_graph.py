"""The op table, the verifier and the reference executor."""

import numpy as np
import pytest

from plow.errors import ConfigError, GraphError
from plow.graph import OPS, Graph, Node, TensorType, verify
from plow.graph.ir import ABSENT
from plow.graph.reference import run
from plow.graph.rope import cos_sin, inv_freq, rotate

ROPE = {"head_dim": 8, "rotary_dim": 8, "theta": 1e4}


def small() -> Graph:
    """tokens -> embed -> norm -> linear"""
    w = {"e": TensorType((16, 8), "bf16"), "n": TensorType((8,), "bf16"), "w": TensorType((4, 8), "bf16")}
    nodes = [
        Node("a", "embed", ("tokens", "e"), ("a",), {"scale": 2.0}, "embed"),
        Node("b", "rms_norm", ("a", "n"), ("b",), {"eps": 1e-5}, "head"),
        Node("c", "linear", ("b", "w", ABSENT), ("c",), {}, "head"),
    ]
    return Graph({"tokens": TensorType(("T",), "i32")}, w, nodes, ["c"])


def test_shapes_are_inferred_with_symbols():
    g = verify(small())
    assert str(g.types["c"]) == "f32[T,4]" and g.types["c"].size({"T": 3}) == 12


def changed(g: Graph, index: int, **fields) -> Graph:
    from dataclasses import replace

    g.nodes[index] = replace(g.nodes[index], **fields)
    return g


@pytest.mark.parametrize(
    "bad, message",
    [
        (lambda: changed(small(), 0, op="emebd"), "unknown op"),
        (lambda: changed(small(), 1, attrs={}), "'eps' is missing"),
        (lambda: changed(small(), 1, attrs={"eps": "tiny"}), "must be float"),
        (lambda: changed(small(), 1, attrs={"eps": 1e-5, "theta": 1.0}), "no attribute"),
        (lambda: changed(small(), 1, inputs=("zzz", "n")), "before it is defined"),
        (lambda: changed(small(), 1, outputs=("a",)), "defined twice"),
        (lambda: changed(small(), 2, inputs=("b", "n", ABSENT)), "must be .out, in."),
        (lambda: changed(small(), 2, inputs=(ABSENT, "w", ABSENT)), "required"),
        (lambda: changed(small(), 2, inputs=("b", "w")), "takes 3 inputs"),
    ],
)
def test_a_broken_graph_is_a_typed_error(bad, message):
    with pytest.raises(GraphError, match=message):
        verify(bad())


def test_an_unused_weight_is_a_typed_error():
    g = small()
    g.weights["extra"] = TensorType((1,), "bf16")
    with pytest.raises(GraphError, match="'extra'"):
        verify(g)


def test_an_output_that_nobody_defines_is_a_typed_error():
    g = small()
    g.outputs = ["d"]
    with pytest.raises(GraphError, match="'d'"):
        verify(g)


def test_the_reference_of_the_small_graph_is_the_formula():
    rng = np.random.default_rng(0)
    weights = {k: rng.normal(size=t.shape) for k, t in small().weights.items()}
    out = run(verify(small()), weights, {"tokens": np.array([3, 5])}, {}, np.float64)["c"]
    x = weights["e"][[3, 5]] * 2
    h = x / np.sqrt((x * x).mean(1, keepdims=True) + 1e-5) * weights["n"]
    assert np.allclose(out, h @ weights["w"].T, rtol=1e-14)


def test_every_fused_operator_names_base_operators_only():
    assert all(not OPS[b].fused for s in OPS.values() for b in s.fused)


def test_rope_keeps_norms_and_depends_on_the_distance_only():
    cos, sin = cos_sin(np.arange(50), 1e4, 8, None, np.float64)
    q, k = np.random.default_rng(1).normal(size=(2, 1, 1, 8))
    at = [rotate(q, cos[i : i + 1], sin[i : i + 1])[0, 0] for i in range(50)]
    kt = [rotate(k, cos[i : i + 1], sin[i : i + 1])[0, 0] for i in range(50)]
    assert np.allclose(np.linalg.norm(at, axis=1), np.linalg.norm(q), rtol=1e-6)
    assert np.allclose([at[i + 7] @ kt[i] for i in range(40)], at[7] @ kt[0], atol=1e-5)
    assert not np.isclose(at[9] @ kt[0], at[7] @ kt[0])


def test_rope_scaling_kinds():
    base = inv_freq(1e4, 8)
    assert np.allclose(inv_freq(1e4, 8, {"rope_type": "linear", "factor": 4.0}) * 4, base)
    llama3 = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    scaled = inv_freq(1e4, 8, llama3)
    assert scaled[0] == base[0] and np.isclose(scaled[-1], base[-1] / 8)
    with pytest.raises(ConfigError, match="yarnish"):
        inv_freq(1e4, 8, {"rope_type": "yarnish"})


def attention_step(window: int, softcap: float = 0.0) -> np.ndarray:
    rng = np.random.default_rng(2)
    caches: dict = {}
    k, v = rng.normal(size=(2, 6, 8))
    pos, slots = np.arange(6), np.zeros(6, int)
    OPS["kv_append"].reference(k, v, pos, slots, num_kv_heads=1, head_dim=8, cache="c", caches=caches)
    q = rng.normal(size=(6, 16))
    return OPS["attention"].reference(
        q,
        "c",
        pos,
        slots,
        num_heads=2,
        num_kv_heads=1,
        head_dim=8,
        scale=0.3,
        window=window,
        softcap=softcap,
        caches=caches,
    )[0]


def test_a_window_hides_exactly_the_older_positions():
    full, wide, narrow = attention_step(0), attention_step(6), attention_step(3)
    assert np.array_equal(full, wide) and np.array_equal(full[:3], narrow[:3]) and not np.allclose(full[3:], narrow[3:])


def test_softcap_changes_the_scores():
    assert not np.allclose(attention_step(0), attention_step(0, 1.0)) and np.allclose(
        attention_step(0), attention_step(0, 1e6), atol=1e-6
    )


@pytest.mark.parametrize("act, at, want", [("silu", 1.0, 0.7310585786300049), ("gelu_tanh", 1.0, 0.8411919906082768)])
def test_activations_have_their_textbook_values(act, at, want):
    assert np.isclose(OPS["activation"].reference(np.array([at]), act=act)[0][0], want, rtol=1e-12)


def test_work_counts_weights_once_and_gathered_rows_only():
    bind = {"T": 4, "S": 1, "C": 10}
    flops, moved = OPS["linear"].work([TensorType(("T", 8)), TensorType((6, 8), "bf16"), None], {}, bind)
    assert flops == 2 * 4 * 8 * 6 and moved == 4 * 8 * 4 + 6 * 8 * 2 + 4 * 6 * 4
    _, moved = OPS["embed"].work([TensorType(("T",), "i32"), TensorType((1000, 8), "bf16")], {}, bind)
    assert moved == 4 * 4 + 4 * 8 * 2 + 4 * 8 * 4

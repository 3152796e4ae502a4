"""Small graphs for the numeric checks and the self-test: one decoder layer or several, by flags. No model names."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from plow.graph import Graph, Node, TensorType, verify
from plow.graph.ir import ABSENT


@dataclass(frozen=True)
class Shape:
    """post_norm: norms after attention and MLP, before the residual; qk_norm: per-head norms of q and k; bias: on the
    projections of attention; rope: rotate q and k; windows: of the layers in turn, 0 = all; scales: constant factors
    behind the embedding, one `scale` each."""

    layers: int = 1
    hidden: int = 32
    intermediate: int = 48
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 16
    vocab: int = 50
    eps: float = 1e-5
    act: str = "silu"
    theta: float = 5000.0
    zero_centered: bool = False
    qk_norm: bool = False
    post_norm: bool = False
    bias: bool = False
    rope: bool = True
    windows: tuple[int, ...] = (0,)
    scales: tuple[float, ...] = ()


PRE_NORM = Shape()
POST_NORM = Shape(post_norm=True, qk_norm=True, zero_centered=True, act="gelu_tanh", eps=1e-6, windows=(8, 0), layers=2)
NO_ROPE = Shape(rope=False)
SCALED = Shape(scales=(3.0, 0.7))


@dataclass
class Sketch:
    """Collects nodes and weights; values are named as their nodes."""

    weights: dict[str, TensorType] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)
    scope: str = ""

    def weight(self, name: str, *shape: int) -> str:
        name = f"{self.scope}.{name}.weight".lstrip(".")
        self.weights[name] = TensorType(shape, "bf16")
        return name

    def op(self, part: str, op: str, *inputs: str, **attrs: Any) -> str:
        name = f"{self.scope}.{part}".lstrip(".")
        self.nodes.append(Node(name, op, inputs, (name,), attrs, self.scope))
        return name

    def linear(self, part: str, x: str, width: int, out: int, bias: bool = False) -> str:
        weight = self.weight(part, out, width)
        return self.op(part, "linear", x, weight, self.weight(f"{part}_bias", out) if bias else ABSENT)

    def norm(self, part: str, x: str, width: int, s: Shape) -> str:
        return self.op(part, "rms_norm", x, self.weight(part, width), eps=s.eps, zero_centered=s.zero_centered)

    def graph(self, *outputs: str) -> Graph:
        inputs = {name: TensorType(("T",), "i32") for name in ("tokens", "positions", "slots")}
        inputs["sample_rows"] = TensorType(("S",), "i32")
        return verify(Graph(inputs, self.weights, self.nodes, list(outputs)))


def decoder(s: Shape = PRE_NORM) -> Graph:
    """Embedding, `s.layers` decoder layers, final norm and a vocabulary projection of the sampled rows."""
    g = Sketch(scope="embed")
    x = g.op("tokens", "embed", "tokens", g.weight("tokens", s.vocab, s.hidden), scale=1.0)
    for i, factor in enumerate(s.scales):
        x = g.op(f"scale_{i}", "scale", x, factor=factor)
    for i in range(s.layers):
        g.scope = f"layer.{i}"
        y = _attention(g, s, g.norm("input_norm", x, s.hidden, s), s.windows[i % len(s.windows)])
        x = _residual(g, s, "attention", x, y)
        x = _residual(g, s, "mlp", x, _mlp(g, s, g.norm("mlp_norm", x, s.hidden, s)))
    g.scope = "head"
    x = g.norm("norm", g.op("rows", "select_rows", x, "sample_rows"), s.hidden, s)
    return g.graph(g.linear("logits", x, s.hidden, s.vocab))


def _residual(g: Sketch, s: Shape, part: str, x: str, y: str) -> str:
    if s.post_norm:
        y = g.norm(f"{part}_post_norm", y, s.hidden, s)
    return g.op(f"{part}_residual", "add", x, y)


def _attention(g: Sketch, s: Shape, x: str, window: int) -> str:
    q = g.linear("q_proj", x, s.hidden, s.num_heads * s.head_dim, s.bias)
    k = g.linear("k_proj", x, s.hidden, s.num_kv_heads * s.head_dim, s.bias)
    v = g.linear("v_proj", x, s.hidden, s.num_kv_heads * s.head_dim, s.bias)
    if s.qk_norm:
        q, k = g.norm("q_norm", q, s.head_dim, s), g.norm("k_norm", k, s.head_dim, s)
    if s.rope:
        rope = {"head_dim": s.head_dim, "rotary_dim": s.head_dim, "theta": s.theta, "scaling": {}}
        q, k = (g.op(f"{n}_rope", "rope", z, "positions", **rope) for n, z in (("q", q), ("k", k)))
    heads = {"num_kv_heads": s.num_kv_heads, "head_dim": s.head_dim}
    kv = g.op("kv", "kv_append", k, v, "positions", "slots", cache=g.scope, **heads)
    y = g.op("attention", "attention", q, kv, "positions", "slots", num_heads=s.num_heads, scale=s.head_dim**-0.5,
             window=window, softcap=0.0, **heads)
    return g.linear("o_proj", y, s.num_heads * s.head_dim, s.hidden, s.bias)


def _mlp(g: Sketch, s: Shape, x: str) -> str:
    gate = g.op("act", "activation", g.linear("gate_proj", x, s.hidden, s.intermediate), act=s.act)
    return g.linear("down_proj", g.op("mul", "mul", gate, g.linear("up_proj", x, s.hidden, s.intermediate)),
                    s.intermediate, s.hidden)

"""Blocks that families share: embedding, norm, attention, gated MLP, head, a pre-norm stack. Base operators only.

A node is named scope + "." + part ("layer.3.q_proj"); its value has the same name. A weight is named as in the
checkpoint. hidden states: [T, hidden_size] f32; weights: bf16.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Self

from plow.graph import Graph, Node, TensorType, verify
from plow.graph.ir import ABSENT
from plow.models.config import FamilyConfig
from plow.models.rope_config import Rope

ACTIVATIONS = {"silu": "silu", "gelu_pytorch_tanh": "gelu_tanh"}
"""hidden_act of a config -> activation of the op table."""


@dataclass
class Builder:
    """Collects nodes and weights; `scope` is the scope of the nodes that are being added."""

    scope: str = "embed"
    nodes: list[Node] = field(default_factory=list)
    weights: dict[str, TensorType] = field(default_factory=dict)

    def weight(self, name: str, *shape: int) -> str:
        """Declare a checkpoint tensor (again, for a tied one)."""
        self.weights[name] = TensorType(shape, "bf16")
        return name

    def op(self, part: str, op: str, *inputs: str, output: str = "", **attrs: Any) -> str:
        """Append a node of the current scope; returns the name of its value."""
        name = f"{self.scope}.{part}"
        value = output or name
        self.nodes.append(Node(name, op, inputs, (value,), attrs, self.scope))
        return value

    def graph(self, meta: dict[str, Any]) -> Graph:
        inputs = {name: TensorType(("T",), "i32") for name in ("tokens", "positions", "slots")}
        inputs["sample_rows"] = TensorType(("S",), "i32")
        return Graph(inputs, dict(self.weights), list(self.nodes), ["logits"], {}, meta)


@dataclass(frozen=True)
class Norm:
    """RMSNorm flavour. zero_centered: the weight is stored as w - 1."""

    eps: float
    zero_centered: bool = False

    def __call__(self, b: Builder, part: str, x: str, weight: str, width: int) -> str:
        return b.op(part, "rms_norm", x, b.weight(weight, width), eps=self.eps, zero_centered=self.zero_centered)


@dataclass(frozen=True)
class Attention:
    """Grouped-query attention. scale: factor on q k^T; qk_norm: per-head RMSNorm on q and k before RoPE; window: last
    positions seen, 0 = all; bias: on all four projections."""

    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    rope: Rope
    qk_norm: Norm | None = None
    window: int = 0
    bias: bool = False

    @classmethod
    def of(cls, c: FamilyConfig, rope: Rope, qk_norm: Norm | None = None, window: int = 0, bias: bool = False) -> Self:
        """With the config's geometry and the usual scale, 1 / sqrt(head_dim)."""
        heads = c.num_attention_heads, c.num_key_value_heads
        return cls(c.hidden_size, *heads, c.head_dim, c.head_dim**-0.5, rope, qk_norm, window, bias)

    def __call__(self, b: Builder, x: str, prefix: str) -> str:
        """prefix: e.g. "model.layers.3.self_attn". Returns the output of o_proj: [T, hidden_size]."""
        q_size, kv_size = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        q = linear(b, "q_proj", x, f"{prefix}.q_proj", self.hidden_size, q_size, self.bias)
        k = linear(b, "k_proj", x, f"{prefix}.k_proj", self.hidden_size, kv_size, self.bias)
        v = linear(b, "v_proj", x, f"{prefix}.v_proj", self.hidden_size, kv_size, self.bias)
        if self.qk_norm is not None:
            q = self.qk_norm(b, "q_norm", q, f"{prefix}.q_norm.weight", self.head_dim)
            k = self.qk_norm(b, "k_norm", k, f"{prefix}.k_norm.weight", self.head_dim)
        q, k = self._rope(b, "q_rope", q), self._rope(b, "k_rope", k)
        kv = b.op(
            "kv_append",
            "kv_append",
            k,
            v,
            "positions",
            "slots",
            output=f"{b.scope}.kv_append.kv",
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            cache=b.scope,
        )
        y = b.op(
            "attention",
            "attention",
            q,
            kv,
            "positions",
            "slots",
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            scale=self.scale,
            window=self.window,
            softcap=0.0,
        )
        return linear(b, "o_proj", y, f"{prefix}.o_proj", q_size, self.hidden_size, self.bias)

    def _rope(self, b: Builder, part: str, x: str) -> str:
        return b.op(
            part,
            "rope",
            x,
            "positions",
            head_dim=self.head_dim,
            rotary_dim=self.head_dim,
            theta=self.rope.theta,
            scaling=dict(self.rope.scaling),
        )

    def cache(self, name: str) -> dict[str, Any]:
        """The layer's entry of graph.meta["caches"]."""
        return {"name": name, "num_kv_heads": self.num_kv_heads, "head_dim": self.head_dim, "window": self.window}


def linear(b: Builder, part: str, x: str, module: str, in_features: int, out_features: int, bias: bool = False) -> str:
    weight = b.weight(f"{module}.weight", out_features, in_features)
    return b.op(part, "linear", x, weight, b.weight(f"{module}.bias", out_features) if bias else ABSENT)


def gated_mlp(
    b: Builder, x: str, prefix: str, hidden_size: int, intermediate_size: int, act: str, bias: bool = False
) -> str:
    """down(act(gate(x)) * up(x)); prefix: e.g. "model.layers.3.mlp"; act: name of the op table."""
    gate = linear(b, "gate_proj", x, f"{prefix}.gate_proj", hidden_size, intermediate_size, bias)
    up = linear(b, "up_proj", x, f"{prefix}.up_proj", hidden_size, intermediate_size, bias)
    gated = b.op("mlp_mul", "mul", b.op("mlp_act", "activation", gate, act=act), up)
    return linear(b, "down_proj", gated, f"{prefix}.down_proj", intermediate_size, hidden_size, bias)


def embedding(b: Builder, vocab_size: int, hidden_size: int, scale: float = 1.0) -> str:
    b.scope = "embed"
    return b.op(
        "embed_tokens", "embed", "tokens", b.weight("model.embed_tokens.weight", vocab_size, hidden_size), scale=scale
    )


def head(b: Builder, x: str, norm: Norm, vocab_size: int, hidden_size: int, tied: bool, softcap: float = 0.0) -> None:
    """Final norm and vocabulary projection of the sampled rows; defines "logits": [S, vocab_size]."""
    b.scope = "head"
    rows = norm(b, "norm", b.op("select_rows", "select_rows", x, "sample_rows"), "model.norm.weight", hidden_size)
    weight = b.weight("model.embed_tokens.weight" if tied else "lm_head.weight", vocab_size, hidden_size)
    logits = b.op("lm_head", "linear", rows, weight, ABSENT, output="" if softcap else "logits")
    if softcap:
        b.op("softcap", "softcap", logits, output="logits", cap=softcap)


def pre_norm(
    c: FamilyConfig, raw: dict[str, Any], attention: Attention, norm: Norm, act: str, mlp_bias: bool = False
) -> Graph:
    """The verified graph of a model whose layers are all x + attention(norm(x)), then x + gated_mlp(norm(x)).

    act: name of the op table; hidden: [T, hidden_size]; one output, "logits": [S, vocab_size].
    """
    b = Builder()
    x = embedding(b, c.vocab_size, c.hidden_size)
    for i in range(c.num_hidden_layers):
        b.scope, prefix = f"layer.{i}", f"model.layers.{i}"
        h = norm(b, "input_layernorm", x, f"{prefix}.input_layernorm.weight", c.hidden_size)
        x = b.op("attention_residual", "add", x, attention(b, h, f"{prefix}.self_attn"))
        h = norm(b, "post_attention_layernorm", x, f"{prefix}.post_attention_layernorm.weight", c.hidden_size)
        h = gated_mlp(b, h, f"{prefix}.mlp", c.hidden_size, c.intermediate_size, act, mlp_bias)
        x = b.op("mlp_residual", "add", x, h)
    head(b, x, norm, c.vocab_size, c.hidden_size, c.tie_word_embeddings)
    return verify(b.graph(c.meta(raw, [attention.cache(f"layer.{i}") for i in range(c.num_hidden_layers)])))

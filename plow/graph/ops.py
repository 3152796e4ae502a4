"""The op table: one entry an operator with attributes, shape rule, reference semantics and work.

Base operators come from `models/`; fused operators are introduced by `rewrite/` only, and each fused reference is
written as the composition of base references, so that its meaning cannot drift from the rule that creates it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from plow.errors import GraphError
from plow.graph import semantics as sem
from plow.graph.ir import ABSENT, Attrs, Dim, Node, TensorType

Types = list[TensorType | None]
Infer = Callable[[Types, Attrs], list[TensorType]]
Flops = Callable[[Types, Attrs, dict[str, int]], float]


@dataclass(frozen=True)
class Attr:
    """One attribute of an operator. `default` None means required. `numeric`: it changes the result of the op."""

    type: type
    doc: str
    default: Any = None


@dataclass(frozen=True)
class OpSpec:
    """inputs: names in order, a trailing "?" marks an optional one. flops: multiply-adds count as 2.

    `fused` lists the base operators that a fused operator stands for (empty for a base operator).
    """

    name: str
    doc: str
    inputs: tuple[str, ...]
    infer: Infer
    reference: Callable[..., list[Any]]
    flops: Flops
    outputs: tuple[str, ...] = ("y",)
    attrs: dict[str, Attr] = field(default_factory=dict)
    fused: tuple[str, ...] = ()

    def input_names(self) -> tuple[str, ...]:
        return tuple(i.rstrip("?") for i in self.inputs)

    def index(self, name: str) -> int:
        return self.input_names().index(name)

    def work(self, types: Types, attrs: Attrs, bind: dict[str, int]) -> tuple[float, float]:
        """(flops, bytes) of one application: every operand is read once, every result written once; of a weight
        table that is gathered from, only the gathered rows count. bind: {"T": rows, "S": samples, "C": context}."""
        from plow.graph.ir import ITEMSIZE

        outs = self.infer(types, attrs)
        moved = 0.0
        for name, t in zip(self.input_names(), types, strict=True):
            if t is None:
                continue
            if self.name == "embed" and name == "table":
                moved += outs[0].size(bind) * ITEMSIZE[t.dtype]
            elif t.dtype == "kv":
                moved += sem.kv_bytes_read(t, attrs, bind)
            else:
                moved += t.size(bind) * ITEMSIZE[t.dtype]
        moved += sum(t.size(bind | {"C": bind["T"]}) * ITEMSIZE[t.dtype] for t in outs)
        return self.flops(types, attrs, bind), moved


OPS: dict[str, OpSpec] = {}


def _op(spec: OpSpec) -> None:
    OPS[spec.name] = spec


EPS = {
    "eps": Attr(float, "added to the mean square"),
    "zero_centered": Attr(bool, "the weight is stored as w - 1", False),
}
ROPE = {
    "head_dim": Attr(int, "features a head"),
    "rotary_dim": Attr(int, "rotated features a head, from the first"),
    "theta": Attr(float, "RoPE base"),
    "scaling": Attr(dict, "HF rope_parameters other than theta; {} = default", {}),
}
HEADS = {
    "num_heads": Attr(int, "query heads"),
    "num_kv_heads": Attr(int, "key/value heads"),
    "head_dim": Attr(int, "features a head"),
}
ACT = {"act": Attr(str, "silu | gelu_tanh")}


def _same(types: Types, attrs: Attrs) -> list[TensorType]:
    return [types[0]]  # type: ignore[list-item]


def _rows(n: Dim, width: Dim) -> list[TensorType]:
    return [TensorType((n, width))]


def _width(t: TensorType | None) -> int:
    """Features of a row."""
    if t is None or not isinstance(t.shape[-1], int):
        raise GraphError(f"a row of fixed width is needed, got {t}")
    return t.shape[-1]


def _linear(types: Types, attrs: Attrs, w: int = 1) -> list[TensorType]:
    x, weight = types[0], types[w]
    assert x is not None and weight is not None
    if len(weight.shape) != 2:
        raise GraphError(f"linear: the weight must be [out, in], is {weight}")
    if x.shape[-1] != weight.shape[1]:
        raise GraphError(f"linear: input has {x.shape[-1]} features, weight {weight} wants {weight.shape[1]}")
    return _rows(x.shape[0], weight.shape[0])


def _norm(types: Types, attrs: Attrs) -> list[TensorType]:
    x, w = types[0], types[1]
    assert x is not None and w is not None
    width, group = x.shape[-1], w.shape[0]
    if not (isinstance(width, int) and isinstance(group, int) and width % group == 0):
        raise GraphError(f"rms_norm: {width} features are no multiple of the weight's {group}")
    return [x]


def _binary(types: Types, attrs: Attrs) -> list[TensorType]:
    a, b = types[0], types[1]
    if a is None or b is None or a.shape != b.shape:
        raise GraphError(f"elementwise: shapes differ: {a} and {b}")
    return [a]


def _kv(types: Types, attrs: Attrs) -> list[TensorType]:
    return [TensorType(("C", 2 * attrs["num_kv_heads"] * attrs["head_dim"]), "kv")]


def _attention(types: Types, attrs: Attrs) -> list[TensorType]:
    q = types[0]
    assert q is not None
    want = attrs["num_heads"] * attrs["head_dim"]
    if q.shape[-1] != want:
        raise GraphError(f"attention: q has {q.shape[-1]} features, attributes say {want}")
    return [q]


def _elementwise_flops(k: float) -> Flops:
    return lambda types, attrs, bind: k * (types[0].size(bind) if types[0] else 0)


def _linear_flops(x: int = 0, *weights: int) -> Flops:
    ws = weights or (1,)
    return lambda t, a, b: sum(2.0 * t[x].size(b) * t[w].shape[0] for w in ws)  # type: ignore[union-attr,operator,misc]


def _attention_flops(types: Types, attrs: Attrs, bind: dict[str, int]) -> float:
    context = min(bind["C"], attrs["window"]) if attrs["window"] else bind["C"]
    return 4.0 * bind["T"] * attrs["num_heads"] * attrs["head_dim"] * context


# -- base operators --------------------------------------------------------------------------------------------------
_op(
    OpSpec(
        "embed",
        "y[t] = table[tokens[t]] * scale",
        ("tokens", "table"),
        lambda t, a: _rows("T", _width(t[1])),
        sem.embed,
        lambda t, a, b: b["T"] * _width(t[1]),
        attrs={"scale": Attr(float, "embedding multiplier", 1.0)},
    )
)
_op(
    OpSpec(
        "rms_norm",
        "x / sqrt(mean(x^2) + eps) * w over groups of len(w) features",
        ("x", "weight"),
        _norm,
        sem.rms_norm,
        _elementwise_flops(4),
        attrs=EPS,
    )
)
_op(OpSpec("linear", "x @ weight.T (+ bias)", ("x", "weight", "bias?"), _linear, sem.linear, _linear_flops()))
_op(
    OpSpec(
        "rope",
        "rotate pairs (i, i + rotary_dim/2) of each head by position",
        ("x", "positions"),
        _same,
        sem.rope,
        _elementwise_flops(3),
        attrs=ROPE,
    )
)
_op(
    OpSpec(
        "kv_append",
        "write k and v of every row at its sequence position; the result is the layer's cache",
        ("k", "v", "positions", "slots"),
        _kv,
        sem.kv_append,
        lambda t, a, b: 0.0,
        outputs=("kv",),
        attrs={
            "num_kv_heads": HEADS["num_kv_heads"],
            "head_dim": HEADS["head_dim"],
            "cache": Attr(str, "cache name, e.g. layer.3"),
        },
    )
)
_op(
    OpSpec(
        "attention",
        "causal softmax(q k^T * scale) v over the sequence of each row, optionally windowed",
        ("q", "kv", "positions", "slots"),
        _attention,
        sem.attention,
        _attention_flops,
        attrs=HEADS
        | {
            "scale": Attr(float, "factor on q k^T"),
            "window": Attr(int, "last positions seen; 0 = all", 0),
            "softcap": Attr(float, "cap * tanh(score / cap); 0 = off", 0.0),
        },
    )
)
_op(
    OpSpec(
        "activation", "silu or gelu_tanh, elementwise", ("x",), _same, sem.activation, _elementwise_flops(8), attrs=ACT
    )
)
_op(OpSpec("add", "a + b", ("a", "b"), _binary, sem.add, _elementwise_flops(1)))
_op(OpSpec("mul", "a * b", ("a", "b"), _binary, sem.mul, _elementwise_flops(1)))
_op(
    OpSpec(
        "scale",
        "x * factor",
        ("x",),
        _same,
        sem.scale,
        _elementwise_flops(1),
        attrs={"factor": Attr(float, "constant")},
    )
)
_op(
    OpSpec(
        "softcap",
        "cap * tanh(x / cap)",
        ("x",),
        _same,
        sem.softcap,
        _elementwise_flops(8),
        attrs={"cap": Attr(float, "cap")},
    )
)
_op(
    OpSpec(
        "select_rows",
        "y[s] = x[sample_rows[s]]",
        ("x", "sample_rows"),
        lambda t, a: _rows("S", _width(t[0])),
        sem.select_rows,
        lambda t, a, b: 0.0,
    )
)

# -- fused operators (introduced by rewrite/) --------------------------------------------------------------------------
_op(
    OpSpec(
        "norm_linear",
        "linear(rms_norm(x, norm_weight), weight)",
        ("x", "norm_weight", "weight"),
        lambda t, a: _linear(t, a, 2),
        sem.norm_linear,
        _linear_flops(0, 2),
        attrs=EPS,
        fused=("rms_norm", "linear"),
    )
)
_op(
    OpSpec(
        "linear_add",
        "residual + linear(x, weight)",
        ("x", "weight", "residual"),
        _linear,
        sem.linear_add,
        _linear_flops(),
        fused=("linear", "add"),
    )
)
_op(
    OpSpec(
        "norm_add",
        "residual + rms_norm(x, weight)",
        ("x", "weight", "residual"),
        _norm,
        sem.norm_add,
        _elementwise_flops(5),
        attrs=EPS,
        fused=("rms_norm", "add"),
    )
)
_op(
    OpSpec(
        "act_mul",
        "activation(gate) * up",
        ("gate", "up"),
        _binary,
        sem.act_mul,
        _elementwise_flops(9),
        attrs=ACT,
        fused=("activation", "mul"),
    )
)
_op(
    OpSpec(
        "gated_linear",
        "activation(linear(x, gate)) * linear(x, up)",
        ("x", "gate_weight", "up_weight"),
        _linear,
        sem.gated_linear,
        _linear_flops(0, 1, 2),
        attrs=ACT,
        fused=("linear", "linear", "activation", "mul"),
    )
)
_op(
    OpSpec(
        "norm_gated_linear",
        "gated_linear(rms_norm(x, norm_weight), gate, up)",
        ("x", "norm_weight", "gate_weight", "up_weight"),
        lambda t, a: _linear(t, a, 2),
        sem.norm_gated_linear,
        _linear_flops(0, 2, 3),
        attrs=ACT | EPS,
        fused=("rms_norm", "linear", "linear", "activation", "mul"),
    )
)
_op(
    OpSpec(
        "norm_rope",
        "rope(rms_norm(x, weight), positions)",
        ("x", "weight", "positions"),
        _norm,
        sem.norm_rope,
        _elementwise_flops(7),
        attrs=ROPE | EPS,
        fused=("rms_norm", "rope"),
    )
)
_op(
    OpSpec(
        "qkv",
        "grouped projection of q, k, v: optional norm before, optional per-head q/k norm, rope on q and k, "
        "k and v appended to the cache; outputs q and the cache",
        ("x", "norm_weight?", "q_weight", "k_weight", "v_weight", "q_norm?", "k_norm?", "positions", "slots"),
        lambda t, a: [TensorType(("T", a["num_heads"] * a["head_dim"])), *_kv(t, a)],
        sem.qkv,
        lambda t, a, b: sum(2.0 * t[0].size(b) * t[i].shape[0] for i in (2, 3, 4)),  # type: ignore[union-attr,operator,misc]
        outputs=("q", "kv"),
        attrs=HEADS
        | ROPE
        | {
            "cache": Attr(str, "cache name"),
            "eps": Attr(float, "of the norm before", 0.0),
            "qk_eps": Attr(float, "of the q/k norms", 0.0),
            "zero_centered": Attr(bool, "norm weights are stored as w - 1", False),
        },
        fused=("rms_norm", "linear", "linear", "linear", "rms_norm", "rms_norm", "rope", "rope", "kv_append"),
    )
)


def infer_node(node: Node, types: dict[str, TensorType]) -> dict[str, TensorType]:
    """Types of the node's outputs. Raises GraphError for an unknown op, a wrong arity, an undefined value or a shape
    that the op's rule refuses."""
    spec = OPS.get(node.op)
    if spec is None:
        raise GraphError(f"unknown op {node.op!r}", node.name, f"known: {', '.join(sorted(OPS))}")
    if len(node.inputs) != len(spec.inputs) or len(node.outputs) != len(spec.outputs):
        raise GraphError(f"{node.op} takes {len(spec.inputs)} inputs and {len(spec.outputs)} outputs", node.name)
    args: Types = []
    for name, value in zip(spec.inputs, node.inputs, strict=True):
        if value == ABSENT:
            if not name.endswith("?"):
                raise GraphError(f"{node.op}: input {name!r} is required", node.name)
            args.append(None)
        elif value not in types:
            raise GraphError(f"value {value!r} is used before it is defined", node.name)
        else:
            args.append(types[value])
    try:
        outs = spec.infer(args, node.attrs)
    except KeyError as e:
        raise GraphError(f"{node.op}: attribute {e.args[0]!r} is missing", node.name) from None
    except GraphError as e:
        raise GraphError(e.what, node.name) from None
    return dict(zip(node.outputs, outs, strict=True))

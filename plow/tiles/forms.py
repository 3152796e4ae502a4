"""The packet form of every operator: one function an operator, no fusion, no model names."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from plow.errors import LoweringError
from plow.graph.ir import ABSENT, Graph, Node
from plow.packet.abi import LANES, NO_FLAGS, UNIT_ROWS, Domain, Epilogue, Flag, Opcode
from plow.packet.layouts import num_units


@dataclass(frozen=True)
class WeightRef:
    """A region of the weight segment. layout: units | gated | heads | vector | rope; sources: checkpoint tensors in
    order (for rope: the JSON of its parameters); zero_centered: the +1 of the norm weight is folded in."""

    layout: str
    sources: tuple[str, ...]
    zero_centered: bool = False


@dataclass(frozen=True)
class ValueRef:
    """An activation of the graph."""

    name: str


@dataclass(frozen=True)
class CacheRef:
    """The KV region of a cache."""

    name: str


Ref = WeightRef | ValueRef | CacheRef


@dataclass
class Form:
    """A node as a packet without worker, rows and addresses.

    axis: what may be cut beside rows: "unit" (projections), "head" (qkv, attention) or "" (rows only); extent: its
    length. dims and imms are complete but for the row range and the axis range.
    """

    node: Node
    opcode: Opcode
    operands: dict[str, Ref]
    dims: dict[str, int] = field(default_factory=dict)
    imms: dict[str, float] = field(default_factory=dict)
    flags: Flag = NO_FLAGS
    epilogue: Epilogue = Epilogue.STORE
    domain: Domain = Domain.ROWS
    axis: str = ""
    extent: int = 1


def stride(width: int) -> int:
    """Floats a row of an activation with `width` features."""
    return width + -width % LANES


class Lowering:
    """Forms of a graph's nodes. Raises LoweringError naming the node when a dimension does not fit the ABI."""

    def __init__(self, graph: Graph, bf16_dot: bool = False) -> None:
        self.graph = graph
        self.dot = Flag.BF16_DOT if bf16_dot else NO_FLAGS

    def form(self, node: Node) -> Form:
        make = FORMS.get(node.op)
        if make is None:
            raise LoweringError(
                f"operator {node.op!r} has no packet form", node.name, f"forms: {', '.join(sorted(FORMS))}"
            )
        form = make(self, node)
        first = self.graph.types[node.outputs[0]].shape[0]
        form.domain = Domain.SAMPLES if first == "S" else Domain.ROWS
        return form

    def width(self, value: str) -> int:
        w = self.graph.types[value].shape[-1]
        if not isinstance(w, int):
            raise LoweringError(f"value {value!r} has a symbolic width")
        return w

    def strides(self, **values: str) -> dict[str, int]:
        return {f"{k}_stride": stride(self.width(v)) for k, v in values.items() if v != ABSENT}

    def projection(
        self, node: Node, x: str, y: str, weight: WeightRef, n: int, extra: dict[str, Ref] | None = None, **kw: Any
    ) -> Form:
        k = self.width(x)
        if k % LANES:
            raise LoweringError(f"{k} input features are no multiple of {LANES}", node.name)
        per_unit = LANES if weight.layout == "gated" else UNIT_ROWS
        return Form(
            node,
            Opcode.LINEAR,
            {"x": ValueRef(x), "weight": weight, "y": ValueRef(y), **(extra or {})},
            {"k": k, "n": n, **self.strides(x=x, y=y)},
            axis="unit",
            extent=-(-n // per_unit),
            **kw,
        )


def _vector(node: Node, value: str) -> WeightRef:
    return WeightRef("vector", (value,), bool(node.attrs.get("zero_centered", False)))


def _rope_table(node: Node) -> WeightRef:
    a = node.attrs
    params = {"theta": a["theta"], "rotary_dim": a["rotary_dim"], "scaling": a.get("scaling", {})}
    return WeightRef("rope", (json.dumps(params, sort_keys=True),))


def _embed(lo: Lowering, n: Node) -> Form:
    vocab, width = lo.graph.types[n.inputs[1]].shape
    return Form(
        n,
        Opcode.EMBED,
        {"table": WeightRef("units", (n.inputs[1],)), "y": ValueRef(n.outputs[0])},
        {"width": int(width), "vocab": int(vocab), **lo.strides(y=n.outputs[0])},
        {"scale": n.attrs.get("scale", 1.0)},
    )


def _norm(lo: Lowering, n: Node) -> Form:
    x, w = n.inputs[0], n.inputs[1]
    group = int(lo.graph.types[w].shape[0])
    f = Form(
        n,
        Opcode.NORM,
        {"x": ValueRef(x), "weight": _vector(n, w), "y": ValueRef(n.outputs[0])},
        {"width": lo.width(x), "group": group, **lo.strides(x=x, y=n.outputs[0])},
        {"eps": n.attrs["eps"]},
    )
    if n.op == "norm_add":
        f.operands["residual"] = ValueRef(n.inputs[2])
        f.dims |= lo.strides(residual=n.inputs[2])
        f.flags |= Flag.RESIDUAL
    return f


def _linear(lo: Lowering, n: Node) -> Form:
    names = {
        "linear": ("x", "weight", "bias"),
        "norm_linear": ("x", "norm_weight", "weight"),
        "linear_add": ("x", "weight", "residual"),
    }
    args = dict(zip(names[n.op], n.inputs, strict=True))
    rows = int(lo.graph.types[args["weight"]].shape[0])
    extra: dict[str, Ref] = {}
    flags, imms, dims = lo.dot, {}, {}
    if n.op == "norm_linear":
        extra["norm_weight"], imms, flags = _vector(n, args["norm_weight"]), {"eps": n.attrs["eps"]}, flags | Flag.NORM
    elif n.op == "linear_add":
        extra["residual"], dims, flags = (
            ValueRef(args["residual"]),
            lo.strides(residual=args["residual"]),
            flags | Flag.RESIDUAL,
        )
    elif args["bias"] != ABSENT:
        extra["bias"] = WeightRef("vector", (args["bias"],))
    f = lo.projection(
        n, args["x"], n.outputs[0], WeightRef("units", (args["weight"],)), rows, extra, flags=flags, imms=imms
    )
    f.dims |= dims
    return f


def _gated(lo: Lowering, n: Node) -> Form:
    norm = n.op == "norm_gated_linear"
    gate, up = n.inputs[-2:]
    f = lo.projection(
        n,
        n.inputs[0],
        n.outputs[0],
        WeightRef("gated", (gate, up)),
        int(lo.graph.types[gate].shape[0]),
        {"norm_weight": _vector(n, n.inputs[1])} if norm else None,
        flags=lo.dot | (Flag.NORM if norm else NO_FLAGS),
        imms={"eps": float(n.attrs["eps"])} if norm else {},
    )
    f.epilogue = Epilogue[f"GATED_{n.attrs['act'].upper()}"]
    return f


def _qkv(lo: Lowering, n: Node) -> Form:
    x, norm, q, k, v, q_norm, k_norm = n.inputs[:7]
    a = n.attrs
    if a["head_dim"] % UNIT_ROWS:
        raise LoweringError(
            f"head_dim {a['head_dim']} is no multiple of {UNIT_ROWS}", n.name, "disable the qkv rules for this model"
        )
    operands: dict[str, Ref] = {
        "x": ValueRef(x),
        "weight": WeightRef("heads", (q, k, v)),
        "y": ValueRef(n.outputs[0]),
        "kv": CacheRef(a["cache"]),
    }
    flags = lo.dot
    if norm != ABSENT:
        operands["norm_weight"], flags = _vector(n, norm), flags | Flag.NORM
    if q_norm != ABSENT:
        operands |= {"q_norm": _vector(n, q_norm), "k_norm": _vector(n, k_norm)}
        flags |= Flag.QK_NORM
    if a["rotary_dim"]:
        operands["rope"], flags = _rope_table(n), flags | Flag.ROPE
    dims = {k: a[k] for k in ("num_heads", "num_kv_heads", "head_dim", "rotary_dim")}
    return Form(
        n,
        Opcode.QKV,
        operands,
        {"k": lo.width(x), **dims, **lo.strides(x=x, y=n.outputs[0])},
        {"eps": a.get("eps", 0.0), "qk_eps": a.get("qk_eps", 0.0)},
        flags,
        axis="head",
        extent=a["num_heads"] + 2 * a["num_kv_heads"],
    )


def _rope(lo: Lowering, n: Node) -> Form:
    x, y, a = n.inputs[0], n.outputs[0], n.attrs
    f = Form(
        n,
        Opcode.ROPE,
        {"x": ValueRef(x), "rope": _rope_table(n), "y": ValueRef(y)},
        {
            "num_heads": lo.width(x) // a["head_dim"],
            "head_dim": a["head_dim"],
            "rotary_dim": a["rotary_dim"],
            **lo.strides(x=x, y=y),
        },
    )
    if n.op == "norm_rope":
        f.operands["norm_weight"], f.imms, f.flags = _vector(n, n.inputs[1]), {"eps": a["eps"]}, Flag.NORM
    return f


def _kv_append(lo: Lowering, n: Node) -> Form:
    k, v = n.inputs[:2]
    return Form(
        n,
        Opcode.KV_APPEND,
        {"k": ValueRef(k), "v": ValueRef(v), "kv": CacheRef(n.attrs["cache"])},
        {"num_kv_heads": n.attrs["num_kv_heads"], "head_dim": n.attrs["head_dim"], **lo.strides(k=k, v=v)},
    )


def _attention(lo: Lowering, n: Node) -> Form:
    q, kv, a = n.inputs[0], n.inputs[1], n.attrs
    cache = lo.graph.producer()[kv].attrs["cache"]
    dims = {k: a[k] for k in ("num_heads", "num_kv_heads", "head_dim")} | {"window": a.get("window", 0)}
    return Form(
        n,
        Opcode.ATTENTION,
        {"q": ValueRef(q), "kv": CacheRef(cache), "y": ValueRef(n.outputs[0])},
        dims | lo.strides(q=q, y=n.outputs[0]),
        {"scale": a["scale"], "softcap": a.get("softcap", 0.0)},
        axis="head",
        extent=a["num_heads"],
    )


def _elementwise(lo: Lowering, n: Node) -> Form:
    epilogue = {"add": "ADD", "mul": "MUL", "scale": "SCALE", "softcap": "SOFTCAP"}.get(n.op) or (
        n.attrs["act"].upper() if n.op == "activation" else f"ACT_MUL_{n.attrs['act'].upper()}"
    )
    a, b, y = n.inputs[0], (n.inputs[1] if len(n.inputs) > 1 else ABSENT), n.outputs[0]
    operands: dict[str, Ref] = {"a": ValueRef(a), "y": ValueRef(y)}
    if b != ABSENT:
        operands["b"] = ValueRef(b)
    factor = float(n.attrs.get("factor") or n.attrs.get("cap") or 0.0)
    return Form(
        n,
        Opcode.ELEMENTWISE,
        operands,
        {"width": lo.width(a), **lo.strides(a=a, b=b, y=y)},
        {"factor": factor},
        epilogue=Epilogue[epilogue],
    )


def _select(lo: Lowering, n: Node) -> Form:
    x, y = n.inputs[0], n.outputs[0]
    return Form(n, Opcode.SELECT, {"x": ValueRef(x), "y": ValueRef(y)}, {"width": lo.width(x), **lo.strides(x=x, y=y)})


FORMS: dict[str, Callable[[Lowering, Node], Form]] = {
    "embed": _embed,
    "rms_norm": _norm,
    "norm_add": _norm,
    "linear": _linear,
    "norm_linear": _linear,
    "linear_add": _linear,
    "gated_linear": _gated,
    "norm_gated_linear": _gated,
    "qkv": _qkv,
    "rope": _rope,
    "norm_rope": _rope,
    "kv_append": _kv_append,
    "attention": _attention,
    "activation": _elementwise,
    "add": _elementwise,
    "mul": _elementwise,
    "scale": _elementwise,
    "softcap": _elementwise,
    "act_mul": _elementwise,
    "select_rows": _select,
}


def sample_form(lo: Lowering, logits: str, valid_vocab: int) -> Form:
    """The SAMPLE packet that ends a program; ids from valid_vocab on (padding) are never sampled."""
    node = Node("sample", "sample", (logits,), (), scope="head")
    return Form(
        node,
        Opcode.SAMPLE,
        {"logits": ValueRef(logits)},
        {"vocab": valid_vocab, **lo.strides(logits=logits)},
        domain=Domain.SAMPLES,
    )


def weight_units(form: Form) -> int:
    """Units that the form's weight has (projections and qkv)."""
    if form.opcode == Opcode.QKV:
        return form.extent * num_units(form.dims["head_dim"])
    return form.extent

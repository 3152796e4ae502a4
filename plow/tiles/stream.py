"""The STREAM form of every operator: what a GPU packet computes, and in which form each value travels.

A value of the graph is not one buffer. Its readers decide in which of these forms the producer leaves it:

    vec     published in bf16 for projections; multiplied by the weight of the norm in front of its reader, if any
    ssq     published sums of squares, from which readers of a normalised vec get the norm's factor
    state   fp32, kept by the worker that owns the tile, for residual additions and norms of the result
    rows    published in fp32: q, k and v of a row
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field

from plow.errors import LoweringError
from plow.graph.ir import ABSENT, Graph, Node
from plow.packet.abi import NO_FLAGS, STREAM_CHUNK, STREAM_TILE, Epilogue, Flag, Opcode
from plow.tiles.forms import CacheRef, WeightRef

MAX_GROUP = 8
"""Query heads a kv head: rows of an mma operand."""
HEAD_DIMS = {64: 512, 128: 512, 256: 1024}
"""head_dim -> most query features of a kv head (shared memory for partial sums)."""
MAX_SPLITS = 16


@dataclass(frozen=True)
class BufferRef:
    """A buffer of a program. kind: vec | ssq | rows | keys | tokens | partial (published), state | logits (plain)."""

    kind: str
    name: str


Ref = WeightRef | BufferRef | CacheRef


@dataclass
class StreamForm:
    """A node as a packet without worker, tile range and addresses.

    axis: what is cut: "tile" (tiles of 16 output features), "head" (attention: rows x kv heads x splits) or "row".
    extent: tiles. owned: its tiles stay with their owner (it writes or reads a state). bytes: weight bytes of a tile.
    """

    node: Node
    opcode: Opcode
    operands: dict[str, Ref]
    dims: dict[str, int] = field(default_factory=dict)
    imms: dict[str, float] = field(default_factory=dict)
    flags: Flag = NO_FLAGS
    epilogue: Epilogue = Epilogue.STORE
    axis: str = "tile"
    extent: int = 1
    owned: bool = False
    bytes: int = 0


NORMED = {"norm_linear": 1, "norm_gated_linear": 1, "qkv": 1}
"""Operators that normalise their input x; position of the norm's weight."""
PLAIN = {"linear", "linear_add", "gated_linear"}


class StreamLowering:
    """Forms of a graph. Raises LoweringError naming the node that has none."""

    def __init__(self, graph: Graph, valid_vocab: int) -> None:
        self.graph, self.valid_vocab = graph, valid_vocab
        self.producer = graph.producer()
        self.alias = {n.outputs[0]: n.inputs[0] for n in graph.nodes if n.op == "select_rows"}
        self.readers: dict[str, list[tuple[Node, int]]] = {}
        for n in graph.nodes:
            for i, value in enumerate(n.inputs):
                if value != ABSENT and n.op != "select_rows":
                    self.readers.setdefault(self.source(value), []).append((n, i))

    def forms(self) -> list[StreamForm]:
        for node in self.graph.nodes:  # before what follows from it: no rule fuses a projection with bias
            if node.op == "linear" and node.inputs[2] != ABSENT:
                raise LoweringError("a projection with bias has no STREAM form", node.name, "bias is not built yet")
        found = []
        for node in self.graph.nodes:
            if node.op == "select_rows":
                continue
            make = FORMS.get(node.op)
            if make is None:
                raise LoweringError(
                    f"operator {node.op!r} has no STREAM form", node.name, f"forms: {', '.join(sorted(FORMS))}"
                )
            found.append(make(self, node))
        if found[-1].opcode != Opcode.STREAM_HEAD:
            raise LoweringError("the graph does not end with a projection to logits", found[-1].node.name)
        return [*found, self.sample(found[-1])]

    def source(self, value: str) -> str:
        """The value behind row selections: a step computes the logits of every row."""
        return self.alias.get(value, value)

    def width(self, value: str) -> int:
        return int(self.graph.types[value].shape[-1])

    def vector(self, node: Node, value: str) -> WeightRef:
        return WeightRef("vector", (value,), bool(node.attrs.get("zero_centered", False)))

    def outputs(self, node: Node, value: str) -> tuple[dict[str, Ref], bool]:
        """STREAM_OUT operands of a value as its readers need them, and whether it has a state."""
        norms: set[WeightRef] = set()
        plain = state = ssq = False
        for reader, i in self.readers.get(value, []):
            if i == 0 and reader.op in NORMED and reader.inputs[1] != ABSENT:
                norms.add(self.vector(reader, reader.inputs[1]))
            elif i == 0 and (reader.op in PLAIN or reader.op == "qkv"):
                plain = True
            elif i == 0 and reader.op in ("norm_add", "rms_norm"):
                state = ssq = True
            elif i == 2 and reader.op in ("linear_add", "norm_add"):
                state = True
            else:
                raise LoweringError(
                    f"{reader.op} {reader.name} cannot read a value of {node.op}", node.name, "fuse it, or add a form"
                )
        if len(norms) + plain > 1:
            raise LoweringError(
                "readers want the value in different forms", node.name, "one norm in front of all readers"
            )
        out: dict[str, Ref] = {}
        if state:
            out["state"] = BufferRef("state", value)
        if norms or plain:
            out["y"] = BufferRef("vec", value)
        if norms:
            out["next_norm"] = norms.pop()
        if ssq or "next_norm" in out:
            out["next_ssq"] = BufferRef("ssq", value)
        return out, state

    def projection(self, node: Node, x: str, weight: WeightRef, n: int, norm: str = ABSENT) -> StreamForm:
        """A LINEAR without outputs. n: output features."""
        k = self.width(x)
        per_tile = STREAM_TILE // 2 if weight.layout == "gated_tiles" else STREAM_TILE
        if k % STREAM_CHUNK or n % per_tile:
            raise LoweringError(
                f"{k} input features are no multiple of {STREAM_CHUNK}, or {n} output features none of {per_tile}",
                node.name,
                "pad the checkpoint",
            )
        x = self.source(x)
        f = StreamForm(
            node,
            Opcode.STREAM_LINEAR,
            {"x": BufferRef("vec", x), "weight": weight},
            {"k": k, "n": n},
            {"eps": float(node.attrs.get("eps", 0.0))} if norm != ABSENT else {},
            extent=n // per_tile,
            bytes=STREAM_TILE * k * 2,
        )
        if norm != ABSENT:
            f.operands["ssq"] = BufferRef("ssq", x)
        return f

    def sample(self, head: StreamForm) -> StreamForm:
        logits = head.operands["logits"]
        assert isinstance(logits, BufferRef)
        return StreamForm(
            Node("sample", "sample", (logits.name,), (), scope="head"),
            Opcode.STREAM_SAMPLE,
            {"keys": head.operands["keys"], "logits": logits, "tokens": BufferRef("tokens", "tokens")},
            {"vocab": self.valid_vocab, "logits_stride": head.dims["logits_stride"]},
            axis="row",
        )


def _embed(lo: StreamLowering, n: Node) -> StreamForm:
    vocab, width = (int(d) for d in lo.graph.types[n.inputs[1]].shape)
    if width % STREAM_CHUNK or vocab % STREAM_TILE:
        raise LoweringError(f"a table of {vocab} x {width} has no whole tiles", n.name, "pad the checkpoint")
    out, _ = lo.outputs(n, n.outputs[0])
    return StreamForm(
        n,
        Opcode.STREAM_EMBED,
        {"table": WeightRef("tiles", (n.inputs[1],)), "tokens": BufferRef("tokens", "tokens"), **out},
        {"k": width, "vocab": vocab},
        {"scale": n.attrs.get("scale", 1.0)},
        extent=width // STREAM_TILE,
        owned=True,
    )


def _linear(lo: StreamLowering, n: Node) -> StreamForm:
    norm = n.op == "norm_linear"
    weight = n.inputs[2] if norm else n.inputs[1]
    rows = int(lo.graph.types[weight].shape[0])
    f = lo.projection(n, n.inputs[0], WeightRef("tiles", (weight,)), rows, n.inputs[1] if norm else ABSENT)
    value = n.outputs[0]
    if value in lo.graph.outputs:
        f.opcode = Opcode.STREAM_HEAD
        f.operands |= {"logits": BufferRef("logits", value), "keys": BufferRef("keys", value)}
        f.dims |= {"n": min(rows, lo.valid_vocab), "logits_stride": rows}
        return f
    out, f.owned = lo.outputs(n, value)
    f.operands |= out
    if n.op == "linear_add":
        f.operands["residual"], f.owned = BufferRef("state", lo.source(n.inputs[2])), True
    return f


def _gated(lo: StreamLowering, n: Node) -> StreamForm:
    norm = n.op == "norm_gated_linear"
    gate, up = n.inputs[-2:]
    rows = int(lo.graph.types[gate].shape[0])
    f = lo.projection(n, n.inputs[0], WeightRef("gated_tiles", (gate, up)), rows, n.inputs[1] if norm else ABSENT)
    out, state = lo.outputs(n, n.outputs[0])
    if state or set(out) != {"y"}:
        raise LoweringError("a gated product is read by a norm or a residual", n.name, "only projections may read it")
    f.operands |= out
    f.epilogue = Epilogue[f"GATED_{n.attrs['act'].upper()}"]
    return f


def _qkv(lo: StreamLowering, n: Node) -> StreamForm:
    a = n.attrs
    x, norm, q, k, v = n.inputs[:5]
    rows = (a["num_heads"] + 2 * a["num_kv_heads"]) * a["head_dim"]
    f = lo.projection(n, x, WeightRef("tiles", (q, k, v)), rows, norm)
    f.operands["y"], f.dims["y_stride"], f.flags = BufferRef("rows", n.outputs[0]), rows, Flag.F32_ROWS
    return f


def _attention(lo: StreamLowering, n: Node) -> StreamForm:
    a, q = n.attrs, lo.producer.get(n.inputs[0])
    if q is None or q.op != "qkv":
        raise LoweringError("attention must read a grouped qkv projection", n.name, "do not disable the qkv rules")
    group, head_dim = a["num_heads"] // a["num_kv_heads"], a["head_dim"]
    if head_dim not in HEAD_DIMS or group > MAX_GROUP or group * head_dim > HEAD_DIMS[head_dim]:
        raise LoweringError(
            f"head_dim {head_dim} with {group} query heads a kv head has no kernel",
            n.name,
            f"head_dim -> most query features: {HEAD_DIMS}, at most {MAX_GROUP} heads",
        )
    if a.get("softcap") or q.attrs["rotary_dim"] not in (0, head_dim):
        raise LoweringError("softcap or partial rotation has no STREAM form", n.name, "not built yet")
    operands: dict[str, Ref] = {
        "qkv": BufferRef("rows", n.inputs[0]),
        "kv": CacheRef(q.attrs["cache"]),
        "partials": BufferRef("partial", n.outputs[0]),
        "y": BufferRef("vec", n.outputs[0]),
    }
    flags = NO_FLAGS
    if q.inputs[5] != ABSENT:
        operands |= {"q_norm": lo.vector(q, q.inputs[5]), "k_norm": lo.vector(q, q.inputs[6])}
        flags |= Flag.QK_NORM
    if q.attrs["rotary_dim"]:
        params = {"theta": q.attrs["theta"], "rotary_dim": head_dim, "scaling": q.attrs.get("scaling", {})}
        operands["rope"], flags = WeightRef("rope", (json.dumps(params, sort_keys=True),)), flags | Flag.ROPE
    if set(lo.outputs(n, n.outputs[0])[0]) != {"y"}:
        raise LoweringError("attention is read by something else than a projection", n.name)
    dims = {k: a[k] for k in ("num_heads", "num_kv_heads", "head_dim")} | {"window": a.get("window", 0)}
    return StreamForm(
        n,
        Opcode.STREAM_ATTENTION,
        operands,
        dims | {"qkv_stride": (a["num_heads"] + 2 * a["num_kv_heads"]) * head_dim},
        {"scale": a["scale"], "qk_eps": q.attrs.get("qk_eps", 0.0)},
        flags,
        axis="head",
        extent=a["num_kv_heads"],
    )


def _norm(lo: StreamLowering, n: Node) -> StreamForm:
    x, k = lo.source(n.inputs[0]), lo.width(n.inputs[0])
    if int(lo.graph.types[n.inputs[1]].shape[0]) != k or k % STREAM_CHUNK:
        raise LoweringError("a norm over groups has no STREAM form", n.name, "only q and k norms inside qkv")
    operands: dict[str, Ref] = {
        "x": BufferRef("state", x),
        "ssq": BufferRef("ssq", x),
        "weight": lo.vector(n, n.inputs[1]),
    }
    if n.op == "norm_add":
        operands["residual"] = BufferRef("state", lo.source(n.inputs[2]))
    return StreamForm(
        n,
        Opcode.STREAM_NORM,
        operands | lo.outputs(n, n.outputs[0])[0],
        {"k": k},
        {"eps": n.attrs["eps"]},
        extent=k // STREAM_TILE,
        owned=True,
    )


FORMS: dict[str, Callable[[StreamLowering, Node], StreamForm]] = {
    "embed": _embed,
    "linear": _linear,
    "norm_linear": _linear,
    "linear_add": _linear,
    "gated_linear": _gated,
    "norm_gated_linear": _gated,
    "qkv": _qkv,
    "attention": _attention,
    "rms_norm": _norm,
    "norm_add": _norm,
}

"""One numpy function an opcode: what each packet of `plow.packet.abi` means, in float32.

Every function takes the step's state and a decoded packet. Rows of the loop are `for t in range(row0, min(row1, count),
row_step)`; all of them are computed at once where the packet's definition is row-wise.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from plow.errors import PacketError
from plow.graph.rope import rotate
from plow.packet.abi import KV_BLOCK, LANES, UNIT_ROWS, Domain, Epilogue, Flag, Opcode
from plow.packet.codec import Packet
from plow.runtime.sampler import sample
from plow.runtime.step import Limits, StepBatch

Array = np.ndarray


@dataclass
class State:
    """arena: u8 [bytes]; batch: tokens and positions change in place when `advance` is set; picked: i32 [samples]."""

    arena: Array
    limits: Limits
    batch: StepBatch
    picked: Array
    advance: bool = False

    def array(self, offset: int, dtype: type, *shape: int) -> Array:
        """View of the arena. Raises PacketError when it would leave the arena."""
        size = math.prod(shape) * np.dtype(dtype).itemsize
        if offset < 0 or offset + size > len(self.arena):
            raise PacketError(f"operand bytes {offset}..{offset + size} are outside the arena of {len(self.arena)}")
        return self.arena[offset:offset + size].view(dtype).reshape(shape)

    def rows(self, p: Packet, operand: str, stride: str, width: int, end: int | None = None) -> Array:
        """f32 [end, width] view of an activation buffer (end: last row of the packet's loop by default)."""
        n = max(self.loop(p), default=-1) + 1 if end is None else end
        return self.array(p.operands[operand], np.float32, n, p.dims[stride])[:, :width]

    def loop(self, p: Packet) -> range:
        count = self.batch.n_rows if p.domain == Domain.ROWS else self.batch.n_samples
        return range(p.dims["row0"], min(p.dims["row1"], count), p.dims["row_step"])

    def vector(self, p: Packet, operand: str, width: int) -> Array:
        return self.array(p.operands[operand], np.float32, width)

    def kv_blocks(self, p: Packet) -> Array:
        """f32 [num_kv_blocks, 2, num_kv_heads, 16 * head_dim]; keys lie [head_dim][16], values [16][head_dim]."""
        return self.array(p.operands["kv"], np.float32, self.limits.num_kv_blocks, 2, p.dims["num_kv_heads"],
                          KV_BLOCK * p.dims["head_dim"])

    def block_of(self, t: int) -> tuple[int, int]:
        """KV block and position inside it of row t."""
        position = int(self.batch.positions[t])
        return int(self.batch.page_table[self.batch.slots[t], position // KV_BLOCK]), position % KV_BLOCK


def rms_norm(x: Array, weight: Array, eps: float) -> Array:
    """x: [rows, width], normalised in groups of len(weight)."""
    groups = x.reshape(len(x), x.shape[1] // len(weight), len(weight))
    mean = np.mean(groups * groups, axis=-1, keepdims=True, dtype=np.float32)
    return (groups / np.sqrt(mean + np.float32(eps)) * weight).reshape(x.shape)


def silu(x: Array) -> Array:
    return x / (1 + np.exp(-x))


def gelu_tanh(x: Array) -> Array:
    c = np.float32(math.sqrt(2 / math.pi))
    return np.float32(0.5) * x * (1 + np.tanh(c * (x + np.float32(0.044715) * x * x * x)))


def projection_input(s: State, p: Packet, rows: range) -> Array:
    x = s.rows(p, "x", "x_stride", p.dims["k"])[rows.start::rows.step]
    if p.flags & Flag.NORM:
        x = rms_norm(x, s.vector(p, "norm_weight", p.dims["k"]), p.imms["eps"])
    if p.flags & Flag.BF16_DOT:
        x = x.astype(ml_dtypes.bfloat16).astype(np.float32)
    return x


def project(s: State, p: Packet, x: Array, unit0: int, unit1: int) -> Array:
    """x: [rows, k] times the weights of units unit0..unit1: f32 [rows, 32 * units].

    A u32 word of a unit holds two k of one output row, even k in the low half; bf16 is the high half of an f32.
    """
    k = p.dims["k"]
    words = s.array(p.operands["weight"] + unit0 * UNIT_ROWS * k * 2, np.uint32, unit1 - unit0, k // 2, UNIT_ROWS)
    even, odd = (words << 16).view(np.float32), (words & np.uint32(0xFFFF0000)).view(np.float32)
    y = x[:, 0::2] @ even + x[:, 1::2] @ odd  # [unit, row, 32]
    return y.transpose(1, 0, 2).reshape(len(x), (unit1 - unit0) * UNIT_ROWS)


def embed(s: State, p: Packet) -> None:
    rows, k = s.loop(p), p.dims["width"]
    table = s.array(p.operands["table"], np.uint16, -(-p.dims["vocab"] // UNIT_ROWS), k // 2, 2, LANES, 2)
    y = s.rows(p, "y", "y_stride", k)
    for t in rows:
        unit, row = divmod(int(s.batch.tokens[t]), UNIT_ROWS)
        bits = table[unit, :, row // LANES, row % LANES].reshape(-1)
        y[t] = (bits.astype(np.uint32) << 16).view(np.float32) * np.float32(p.imms["scale"])


def norm(s: State, p: Packet) -> None:
    rows, d = slice(p.dims["row0"], None, p.dims["row_step"]), p.dims
    y = rms_norm(s.rows(p, "x", "x_stride", d["width"])[rows], s.vector(p, "weight", d["group"]), p.imms["eps"])
    if p.flags & Flag.RESIDUAL:
        y = y + s.rows(p, "residual", "residual_stride", d["width"])[rows]
    s.rows(p, "y", "y_stride", d["width"])[rows] = y


def linear(s: State, p: Packet) -> None:
    d, loop = p.dims, s.loop(p)
    rows = slice(loop.start, None, loop.step)
    y = project(s, p, projection_input(s, p, loop), d["unit0"], d["unit1"])
    width = UNIT_ROWS
    if p.epilogue != Epilogue.STORE:
        width = LANES
        halves = y.reshape(len(y), d["unit1"] - d["unit0"], 2, LANES)
        act = silu if p.epilogue == Epilogue.GATED_SILU else gelu_tanh
        y = (act(halves[:, :, 0]) * halves[:, :, 1]).reshape(len(y), y.shape[1] // 2)
    cols = slice(d["unit0"] * width, min(d["unit1"] * width, d["n"]))
    y = y[:, :cols.stop - cols.start]
    if "bias" in p.operands:
        y = y + s.vector(p, "bias", d["n"])[cols]
    if p.flags & Flag.RESIDUAL:
        y = y + s.rows(p, "residual", "residual_stride", d["n"])[rows, cols]
    s.rows(p, "y", "y_stride", d["n"])[rows, cols] = y


def qkv(s: State, p: Packet) -> None:
    d, loop = p.dims, s.loop(p)
    hd, nq, nkv = d["head_dim"], d["num_heads"], d["num_kv_heads"]
    row0, row1 = d["head0"] * hd, d["head1"] * hd
    unit0, unit1 = row0 // UNIT_ROWS, -(-row1 // UNIT_ROWS)
    z = project(s, p, projection_input(s, p, loop), unit0, unit1)[:, row0 - unit0 * UNIT_ROWS:][:, :row1 - row0]
    z = z.reshape(len(loop), d["head1"] - d["head0"], hd)
    q, k, v = (z[:, max(a - d["head0"], 0):max(b - d["head0"], 0)] for a, b in
               ((0, nq), (nq, nq + nkv), (nq + nkv, nq + 2 * nkv)))
    if p.flags & Flag.QK_NORM:
        q, k = (rms_norm(h.reshape(-1, hd), s.vector(p, name, hd), p.imms["qk_eps"]).reshape(h.shape)
                for h, name in ((q, "q_norm"), (k, "k_norm")))
    if p.flags & Flag.ROPE:
        cos, sin = rope_rows(s, p, loop)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
    if q.shape[1]:
        s.rows(p, "y", "y_stride", nq * hd)[loop.start::loop.step, row0:min(row1, nq * hd)] = q.reshape(len(loop), -1)
    store_kv(s, p, loop, k, max(d["head0"] - nq, 0), v, max(d["head0"] - nq - nkv, 0))


def rope_rows(s: State, p: Packet, rows: range) -> tuple[Array, Array]:
    """cos, sin: [len(rows), rotary_dim / 2] of the rows' positions."""
    table = s.array(p.operands["rope"], np.float32, s.limits.max_ctx, p.dims["rotary_dim"])
    both = table[s.batch.positions[rows.start:rows.stop:rows.step]]
    return both[:, :p.dims["rotary_dim"] // 2], both[:, p.dims["rotary_dim"] // 2:]


def store_kv(s: State, p: Packet, rows: range, k: Array, k_head0: int, v: Array, v_head0: int) -> None:
    """k, v: [len(rows), some heads, head_dim] go to heads k_head0.., v_head0.. of the rows' blocks."""
    hd = p.dims["head_dim"]
    blocks = s.kv_blocks(p)
    for i, t in enumerate(rows):
        block, at = s.block_of(t)
        keys, values = blocks[block, 0].reshape(-1, hd, KV_BLOCK), blocks[block, 1].reshape(-1, KV_BLOCK, hd)
        keys[k_head0:k_head0 + k.shape[1], :, at] = k[i]
        values[v_head0:v_head0 + v.shape[1], at] = v[i]


def rope(s: State, p: Packet) -> None:
    rows, width = s.loop(p), p.dims["num_heads"] * p.dims["head_dim"]
    x = s.rows(p, "x", "x_stride", width)[rows.start::rows.step]
    if p.flags & Flag.NORM:
        x = rms_norm(x, s.vector(p, "norm_weight", p.dims["head_dim"]), p.imms["eps"])
    y = rotate(x.reshape(len(x), p.dims["num_heads"], p.dims["head_dim"]), *rope_rows(s, p, rows))
    s.rows(p, "y", "y_stride", width)[rows.start::rows.step] = y.reshape(x.shape)


def kv_append(s: State, p: Packet) -> None:
    rows, heads, hd = s.loop(p), p.dims["num_kv_heads"], p.dims["head_dim"]
    k, v = (s.rows(p, name, f"{name}_stride", heads * hd)[rows.start::rows.step].reshape(-1, heads, hd)
            for name in ("k", "v"))
    store_kv(s, p, rows, k, 0, v, 0)


def attention(s: State, p: Packet) -> None:
    d, hd = p.dims, p.dims["head_dim"]
    group = d["num_heads"] // d["num_kv_heads"]
    heads = np.arange(d["head0"], d["head1"])
    blocks, width = s.kv_blocks(p), d["num_heads"] * hd
    q, y = s.rows(p, "q", "q_stride", width), s.rows(p, "y", "y_stride", width)
    for t in s.loop(p):
        end = int(s.batch.positions[t]) + 1
        start = max(0, end - d["window"]) if d["window"] else 0
        pages = s.batch.page_table[s.batch.slots[t], start // KV_BLOCK:-(-end // KV_BLOCK)]
        part = slice(start % KV_BLOCK, start % KV_BLOCK + end - start)
        # [kv head, page, place, head_dim] -> [kv head, position, head_dim] of the context
        keys = blocks[pages, 0].reshape(len(pages), -1, hd, KV_BLOCK).transpose(1, 0, 3, 2)
        values = blocks[pages, 1].reshape(len(pages), -1, KV_BLOCK, hd).transpose(1, 0, 2, 3)
        keys, values = (z.reshape(len(z), -1, hd) for z in (keys, values))
        keys, values = keys[heads // group, part], values[heads // group, part]
        scores = (keys @ q[t].reshape(-1, hd)[heads][:, :, None])[..., 0] * np.float32(p.imms["scale"])
        cap = np.float32(p.imms["softcap"])
        if cap > 0:
            scores = np.tanh(scores / cap) * cap
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        y[t, d["head0"] * hd:d["head1"] * hd] = (weights[:, None, :] @ values).reshape(-1)


ELEMENTWISE: dict[Epilogue, Callable[[Array, Array, np.float32], Array]] = {
    Epilogue.ADD: lambda a, b, _: a + b,
    Epilogue.MUL: lambda a, b, _: a * b,
    Epilogue.SCALE: lambda a, _, f: a * f,
    Epilogue.SILU: lambda a, *_: silu(a),
    Epilogue.GELU_TANH: lambda a, *_: gelu_tanh(a),
    Epilogue.SOFTCAP: lambda a, _, cap: np.tanh(a / cap) * cap,
    Epilogue.ACT_MUL_SILU: lambda a, b, _: silu(a) * b,
    Epilogue.ACT_MUL_GELU_TANH: lambda a, b, _: gelu_tanh(a) * b,
}


def elementwise(s: State, p: Packet) -> None:
    d, rows = p.dims, slice(p.dims["row0"], None, p.dims["row_step"])
    a = s.rows(p, "a", "a_stride", d["width"])[rows]
    b = s.rows(p, "b", "b_stride", d["width"])[rows] if "b" in p.operands else a
    s.rows(p, "y", "y_stride", d["width"])[rows] = ELEMENTWISE[p.epilogue](a, b, np.float32(p.imms["factor"]))


def select(s: State, p: Packet) -> None:
    rows, width = s.loop(p), p.dims["width"]
    x, y = s.rows(p, "x", "x_stride", width, end=s.batch.n_rows), s.rows(p, "y", "y_stride", width)
    y[rows.start::rows.step] = x[s.batch.sample_rows[rows.start:rows.stop:rows.step]]


def pick(s: State, p: Packet) -> None:
    b, logits = s.batch, s.rows(p, "logits", "logits_stride", p.dims["vocab"])
    for i in s.loop(p):
        row = b.sample_rows[i]
        s.picked[i] = sample(logits[i], float(b.temperature[i]), int(b.top_k[i]), float(b.top_p[i]), float(b.min_p[i]),
                             int(b.seed[i]), int(b.positions[row]))
        if s.advance:
            b.tokens[row] = s.picked[i]
            b.positions[row] += 1


def nop(s: State, p: Packet) -> None:
    """Only waits and signals."""


EXECUTE: dict[Opcode, Callable[[State, Packet], None]] = {
    Opcode.NOP: nop, Opcode.EMBED: embed, Opcode.NORM: norm, Opcode.LINEAR: linear, Opcode.QKV: qkv, Opcode.ROPE: rope,
    Opcode.KV_APPEND: kv_append, Opcode.ATTENTION: attention, Opcode.ELEMENTWISE: elementwise, Opcode.SELECT: select,
    Opcode.SAMPLE: pick,
}

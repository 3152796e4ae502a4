"""What each STREAM packet means, in numpy: bf16 values between packets, fp32 sums.

A packet is a generator: it gives the words that it polls and is resumed when they are written, so that the interpreter
may run anything else in between. Sums of a row depend on that row only.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from plow.graph.rope import rotate
from plow.packet.abi import KV_BLOCK, STREAM_CHUNK, STREAM_TILE, Epilogue, Flag, Opcode
from plow.packet.codec import Packet
from plow.packet.layouts import page_keys, page_values, unpack_tiles
from plow.runtime.numpy_ops import gelu_tanh, rms_norm, silu
from plow.runtime.numpy_published import Array, Polling, StreamState, bf16_bits, widen
from plow.runtime.sampler import sample as draw

SPLIT_PAGES = 8
"""Pages that a part of attention has at least, as in kernels/cuda: fewer are not worth the exchange of partials."""
LOG2E = np.float32(1.4426950408889634)
NAN_KEY = np.uint32(0)
"""A logit that is not a number never wins."""


def weights(s: StreamState, p: Packet) -> Array:
    """f32 [tiles of the packet, 16, k]."""
    first, end, k = p.dims["tile0"], p.dims["tile1"], p.dims["k"]
    at = p.operands["weight"] + first * STREAM_TILE * k * 2
    return widen(unpack_tiles(s.array(at, np.uint16, end - first, k // STREAM_CHUNK, 2, 8, STREAM_CHUNK)))


def multiply(w: Array, x: Array) -> Array:
    """w: [tiles, 16, k], x: [cols, k] -> [cols, tiles * 16]; every element is a sum of its own."""
    return np.stack([np.matmul(w, column).reshape(-1) for column in x])


def vector(s: StreamState, p: Packet, operand: str, first: int, n: int) -> Array:
    return s.array(p.operands[operand], np.float32, first + n)[first:]


def out(s: StreamState, p: Packet, x: Array) -> None:
    """STREAM_OUT: x [cols, features of the packet's tiles] to each of the operands that is given."""
    tiles = p.dims["tile1"] - p.dims["tile0"]
    first = p.dims["tile0"] * (x.shape[1] // tiles)
    if "state" in p.operands:
        s.put_state(p, "state", x)
    if "y" in p.operands:
        scaled = x * vector(s, p, "next_norm", first, x.shape[1]) if "next_norm" in p.operands else x
        s.put_vec(p, "y", first, scaled)
    if "next_ssq" in p.operands:
        squares = np.square(x).reshape(len(x), tiles, -1).sum(axis=2, dtype=np.float32)
        index, shape = slice(p.dims["tile0"], p.dims["tile1"]), (p.dims["tile1"], len(x))
        s.put(p, "next_ssq", shape, index, np.ascontiguousarray(squares.T).view(np.uint32), s.columns(p))


def embed(s: StreamState, p: Packet) -> Polling[None]:
    k, n = p.dims["k"], s.batch.n_rows
    tokens = s.batch.tokens.astype(np.uint32)
    if not s.first:
        tokens = yield from s.poll(p, "tokens", s.published(p, "tokens", np.uint32, p.dims["cols"], other=True)[:n])
    tiles = p.dims["vocab"] // STREAM_TILE
    table = s.array(p.operands["table"], np.uint16, tiles, k // STREAM_CHUNK, 2, 8, STREAM_CHUNK)
    x = np.zeros((p.dims["cols"], (p.dims["tile1"] - p.dims["tile0"]) * STREAM_TILE), np.float32)
    for column, token in enumerate(tokens.tolist()):
        row = table[token // 16, :, token % 16 // 8, token % 8].reshape(-1)
        x[column] = widen(row[p.dims["tile0"] * 16 : p.dims["tile1"] * 16]) * np.float32(p.imms["scale"])
    out(s, p, x)


def linear(s: StreamState, p: Packet) -> Polling[None]:
    x = yield from s.vec(p, "x", p.dims["k"])
    y = multiply(weights(s, p), x)
    y *= yield from s.norm_factor(p)
    if p.epilogue != Epilogue.STORE:
        act = silu if p.epilogue == Epilogue.GATED_SILU else gelu_tanh
        halves = y.reshape(len(y), -1, 2, STREAM_TILE // 2)
        y = (act(halves[:, :, 0]) * halves[:, :, 1]).reshape(len(y), -1)
    if "residual" in p.operands:
        y = y + s.state(p, "residual")
    if p.flags & Flag.F32_ROWS:
        part = slice(p.dims["tile0"] * STREAM_TILE, p.dims["tile1"] * STREAM_TILE)
        s.put(p, "y", (len(y), p.dims["y_stride"]), (slice(None), part), y.view(np.uint32), s.columns(p)[:, None])
    else:
        out(s, p, y)


def norm(s: StreamState, p: Packet) -> Polling[None]:
    x = s.state(p, "x")
    factor = yield from s.norm_factor(p)
    x = x * factor * vector(s, p, "weight", p.dims["tile0"] * STREAM_TILE, x.shape[1])
    if "residual" in p.operands:
        x = x + s.state(p, "residual")
    out(s, p, x)


def head(s: StreamState, p: Packet) -> Polling[None]:
    x = yield from s.vec(p, "x", p.dims["k"])
    y = multiply(weights(s, p), x)
    y *= yield from s.norm_factor(p)
    cap = np.float32(p.imms["softcap"])
    if cap > 0:
        y = np.tanh(y / cap) * cap
    s.put_logits(p, y[: s.batch.n_rows])
    first = p.dims["tile0"] * STREAM_TILE
    ids = np.arange(first, min(first + y.shape[1], p.dims["n"]), dtype=np.uint32)
    best = keys(y[:, : len(ids)], ids).max(axis=1, initial=0)
    s.put(p, "keys", (len(y), p.dims["keys"]), (slice(None), p.dims["key"]), best, s.columns(p))


def keys(logits: Array, ids: Array) -> Array:
    """u64: the largest key is the first largest logit."""
    bits = np.ascontiguousarray(logits).view(np.uint32)
    ordered = np.where(bits >> 31, ~bits, bits | np.uint32(1 << 31))
    ordered = np.where(np.isnan(logits), NAN_KEY, ordered)
    return ordered.astype(np.uint64) << np.uint64(32) | (~ids).astype(np.uint64)


def sample(s: StreamState, p: Packet) -> Polling[None]:
    b, row, count = s.batch, p.dims["row"], p.dims["keys"]
    if row >= b.n_rows:
        return
    found = yield from s.poll(p, "keys", s.published(p, "keys", np.uint64, p.dims["cols"], count)[row])
    token = int(~found.max() & np.uint64(0xFFFFFFFF))
    for i in np.flatnonzero(b.sample_rows == row):
        if b.temperature[i]:
            token = draw(s.logits(p, row), float(b.temperature[i]), int(b.top_k[i]), float(b.top_p[i]),
                         float(b.min_p[i]), int(b.seed[i]), int(b.positions[row]))
        s.picked[i] = token
    s.put(p, "tokens", (p.dims["cols"],), slice(row, row + 1), np.array([token], np.uint32), True)


# -- attention ---------------------------------------------------------------------------------------------------------
class Part:
    """What one split of a row's attention covers: positions first..end of pages page0..page1, and rows of the step.

    used: parts that hold pages, at least 1; position: the row's; own: rows of the step of the same sequence that the
    row sees, in the order of their positions (all of them belong to split 0).
    """

    def __init__(self, s: StreamState, p: Packet) -> None:
        b, row, splits, window = s.batch, p.dims["row"], p.dims["splits"], p.dims["window"]
        same = np.flatnonzero(b.slots == b.slots[row])
        self.position = int(b.positions[row])
        oldest = max(0, self.position + 1 - window) if window else 0
        end = int(b.positions[same].min())
        low, high = oldest // KV_BLOCK, -(-end // KV_BLOCK)
        pages = high - low if end > oldest else 0
        each = max(-(-pages // splits), s.split_pages)
        self.used = max(-(-pages // each), 1)
        self.page0 = low + min(p.dims["split"] * each, pages)
        self.page1 = low + min((p.dims["split"] + 1) * each, pages)
        self.first, self.end = max(oldest, self.page0 * KV_BLOCK), min(end, self.page1 * KV_BLOCK)
        seen = [int(t) for t in same if oldest <= b.positions[t] <= self.position]
        self.own = sorted(seen, key=lambda t: b.positions[t]) if p.dims["split"] == 0 else []


def attention(s: StreamState, p: Packet) -> Polling[None]:
    d, row = p.dims, p.dims["row"]
    if row >= s.batch.n_rows:
        return
    part, group, hd = Part(s, p), d["num_heads"] // d["num_kv_heads"], d["head_dim"]
    width, first = group * hd, d["kv_head"] * group * hd
    alone = part.used == 1
    sums, top, mass = np.zeros((group, hd), np.float32), np.zeros(group, np.float32), np.ones(group, np.float32)
    if d["split"] < part.used:
        sums, top, mass = yield from partial_attention(s, p, part, group)
    column = row if d["cols"] > 1 else 0
    if alone and d["split"] == 0:
        s.put_vec(p, "y", first, (sums / mass[:, None]).reshape(-1), column)
    # One part needs no exchange; its words are re-armed all the same.
    words = np.concatenate([sums.reshape(-1), np.stack([top, mass], axis=1).reshape(-1)]).view(np.uint32)
    start, stride = (row * d["num_kv_heads"] + d["kv_head"]) * d["splits"], width + 2 * group + -2 * group % 4
    shape = (start + d["splits"], stride)
    index = (start + d["split"], slice(0, len(words)))
    s.put(p, "partials", shape, index, words, not alone and d["split"] < part.used)
    if alone:
        return
    share = width // d["splits"]
    mine = np.arange(d["split"] * share, (d["split"] + 1) * share)
    parts = s.published(p, "partials", np.uint32, *shape)[start : start + part.used]
    found = yield from s.poll(p, "partials", parts[:, mine[0] : mine[-1] + 1])
    h0, h1 = int(mine[0]) // hd, int(mine[-1]) // hd + 1
    both = yield from s.poll(p, "partials", parts[:, width + 2 * h0 : width + 2 * h1])
    both = both.view(np.float32).reshape(part.used, h1 - h0, 2)[:, mine // hd - h0]
    factor = np.exp2(both[:, :, 0] - both[:, :, 0].max(axis=0))
    y = (factor * found.view(np.float32)).sum(axis=0) / (factor * both[:, :, 1]).sum(axis=0)
    s.put_vec(p, "y", first + int(mine[0]), y, column)


def partial_attention(s: StreamState, p: Packet, part: Part, group: int) -> Polling[tuple[Array, Array, Array]]:
    """Sums [group, head_dim], maxima and masses [group] of a part, in powers of 2; appends the row's k and v."""
    d, hd, b = p.dims, p.dims["head_dim"], s.batch
    rows = s.published(p, "qkv", np.uint32, d["cols"], d["qkv_stride"])
    pages = s.array(p.operands["kv"], np.uint16, s.limits.num_kv_blocks, d["num_kv_heads"], 2 * KV_BLOCK * hd)
    pages = pages[:, d["kv_head"]]

    def heads(t: int, first: int, n: int) -> Polling[Array]:
        words = yield from s.poll(p, "qkv", rows[t, first * hd : (first + n) * hd])
        return words.view(np.float32).reshape(n, hd)

    q = yield from heads(d["row"], d["kv_head"] * group, group)
    q = rounded(turned(s, p, q, part.position, "q_norm"))
    table = b.page_table[b.slots[d["row"]], part.page0 : part.page1]
    inside = slice(part.first - part.page0 * KV_BLOCK, max(part.end, part.first) - part.page0 * KV_BLOCK)
    cached_k, cached_v = (f(pages[table], hd).reshape(-1, hd)[inside] for f in (page_keys, page_values))
    keys_, values = [cached_k], [cached_v]
    for t in part.own:
        k = yield from heads(t, d["num_heads"] + d["kv_head"], 1)
        v = yield from heads(t, d["num_heads"] + d["num_kv_heads"] + d["kv_head"], 1)
        k = bf16_bits(turned(s, p, k, int(b.positions[t]), "k_norm"))
        v = bf16_bits(v)
        keys_.append(k)
        values.append(v)
        if t == d["row"]:
            block, at = s.block_of(t)
            page_keys(pages[block], hd)[at // 8, at % 8] = k.reshape(-1, 32)
            page_values(pages[block], hd)[at // 8, at % 8 // 2, at % 2] = v.reshape(-1, 2, 8)
    scores = q @ widen(np.concatenate(keys_)).T * (np.float32(p.imms["scale"]) * LOG2E)
    top = scores.max(axis=1)
    e = np.exp2(scores - top[:, None])
    return rounded(e) @ widen(np.concatenate(values)), top, e.sum(axis=1, dtype=np.float32)


def turned(s: StreamState, p: Packet, x: Array, position: int, norm_operand: str) -> Array:
    """x: [heads, head_dim], normalised and rotated as the packet says."""
    hd = p.dims["head_dim"]
    if p.flags & Flag.QK_NORM:
        x = rms_norm(x, s.vector(p, norm_operand, hd), p.imms["qk_eps"])
    if p.flags & Flag.ROPE:
        both = s.array(p.operands["rope"], np.float32, s.limits.max_ctx, hd)[position][None]
        x = rotate(x[None], both[:, : hd // 2], both[:, hd // 2 :])[0]
    return x


def rounded(x: Array) -> Array:
    return widen(bf16_bits(x))


EXECUTE: dict[Opcode, Callable[[StreamState, Packet], Polling[None]]] = {
    Opcode.STREAM_EMBED: embed,
    Opcode.STREAM_LINEAR: linear,
    Opcode.STREAM_NORM: norm,
    Opcode.STREAM_ATTENTION: attention,
    Opcode.STREAM_HEAD: head,
    Opcode.STREAM_SAMPLE: sample,
}

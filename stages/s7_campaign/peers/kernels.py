"""Triton kernels of one decode step: matrix-vector and small-batch products with everything around them fused, and
flash decoding over a split context.

Under programmatic dependent launch (PDL) a kernel starts while the one before it drains: before `gdc_wait` it may read
only what no kernel before it in the step writes: weights, the position, and keys and values of earlier positions.
"""

from __future__ import annotations

import triton
import triton.language as tl

try:
    from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait
except ImportError:  # an older Triton: the variants with PDL do not compile, those without do
    gdc_launch_dependents = gdc_wait = None


@triton.jit
def gemv(
    x: tl.tensor, w: tl.tensor, gain: tl.tensor, out: tl.tensor, best: tl.tensor, best_row: tl.tensor, eps: tl.tensor,
    N: tl.constexpr, K: tl.constexpr, NORM: tl.constexpr, GATE: tl.constexpr, ADD: tl.constexpr, HEAD: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, PDL: tl.constexpr,
) -> None:  # fmt: skip
    """out[N] = w[N, K] @ x[K], one program for BLOCK_N rows. w streams through registers, one tile ahead.

    NORM: x is RMS-normalised and scaled by gain[K]; the factor is applied to the product, so its sum of squares costs
    no pass of its own. GATE: w is [2 N, K] (gate above up), out = silu(gate) * up. ADD: out += instead of =. HEAD: the
    program's best value and its row go to best[program] and best_row[program]. BLOCK_K is 256 columns a warp, or a
    multiple: then x has the layout of w's columns, and no shared memory stands in the loop.
    """
    row = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    col = tl.arange(0, BLOCK_K)[None, :]
    at = row[:, None] * K + col
    if PDL:
        gdc_launch_dependents()
    w0 = tl.load(w + at, eviction_policy="evict_first")
    if GATE:
        u0 = tl.load(w + N * K + at, eviction_policy="evict_first")
        acc_u = tl.zeros([BLOCK_N, BLOCK_K], tl.float32)
    if NORM:
        g0 = tl.load(gain + col, eviction_policy="evict_last")
        squares = tl.zeros([1, BLOCK_K], tl.float32)
    acc = tl.zeros([BLOCK_N, BLOCK_K], tl.float32)
    if PDL:
        gdc_wait()
    x0 = tl.load(x + col, eviction_policy="evict_last")
    for k in range(BLOCK_K, K, BLOCK_K):
        w1 = tl.load(w + at + k, eviction_policy="evict_first")
        x1 = tl.load(x + col + k, eviction_policy="evict_last")
        v = x0.to(tl.float32)
        if NORM:
            g1 = tl.load(gain + col + k, eviction_policy="evict_last")
            squares += v * v
            v *= g0.to(tl.float32)
            g0 = g1
        acc += w0.to(tl.float32) * v
        if GATE:
            u1 = tl.load(w + N * K + at + k, eviction_policy="evict_first")
            acc_u += u0.to(tl.float32) * v
            u0 = u1
        w0 = w1
        x0 = x1
    v = x0.to(tl.float32)
    factor = 1.0
    if NORM:
        squares += v * v
        factor = tl.rsqrt(tl.sum(tl.sum(squares, 1), 0) / K + eps)
        v *= g0.to(tl.float32)
    acc += w0.to(tl.float32) * v
    y = tl.sum(acc, 1) * factor
    if GATE:
        acc_u += u0.to(tl.float32) * v
        y = y * tl.sigmoid(y) * (tl.sum(acc_u, 1) * factor)
    if ADD:
        y += tl.load(out + row).to(tl.float32)
    tl.store(out + row, y.to(out.dtype.element_ty))
    if HEAD:
        top = tl.max(y, 0)
        tl.store(best + tl.program_id(0), top)
        tl.store(best_row + tl.program_id(0), tl.min(tl.where(y == top, row, N), 0))


@triton.jit
def gemm(
    x: tl.tensor, w: tl.tensor, gain: tl.tensor, out: tl.tensor, best: tl.tensor, best_row: tl.tensor, eps: tl.tensor,
    B: tl.constexpr, N: tl.constexpr, K: tl.constexpr, NORM: tl.constexpr, GATE: tl.constexpr, ADD: tl.constexpr,
    HEAD: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, STAGES: tl.constexpr, PDL: tl.constexpr,
) -> None:  # fmt: skip
    """gemv for a batch of up to 16: out[B, N] = x[B, K] @ w[N, K]^T on tensor cores, the batch padded to 16 columns.

    best and best_row are [B, programs]."""
    pid = tl.program_id(0)
    row = pid * BLOCK_N + tl.arange(0, BLOCK_N)
    col = tl.arange(0, BLOCK_K)
    b = tl.arange(0, 16)
    at = row[:, None] * K + col[None, :]
    at_x = b[None, :] * K + col[:, None]
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    acc = tl.zeros([BLOCK_N, 16], tl.float32)
    acc_u = tl.zeros([BLOCK_N, 16], tl.float32)
    squares = tl.zeros([BLOCK_K, 16], tl.float32)
    for k in tl.range(0, K, BLOCK_K, num_stages=STAGES):
        w0 = tl.load(w + at + k, eviction_policy="evict_first")
        v = tl.load(x + at_x + k, mask=b[None, :] < B, other=0.0)
        if NORM:
            f = v.to(tl.float32)
            squares += f * f
            v = (f * tl.load(gain + col + k).to(tl.float32)[:, None]).to(w.dtype.element_ty)
        acc = tl.dot(w0, v, acc)
        if GATE:
            acc_u = tl.dot(tl.load(w + N * K + at + k, eviction_policy="evict_first"), v, acc_u)
    y = acc
    if NORM:
        factor = tl.rsqrt(tl.sum(squares, 0) / K + eps)[None, :]
        y = acc * factor
        acc_u = acc_u * factor
    if GATE:
        y = y * tl.sigmoid(y) * acc_u
    to = out + b[None, :] * N + row[:, None]
    if ADD:
        y += tl.load(to, mask=b[None, :] < B, other=0.0).to(tl.float32)
    tl.store(to, y.to(out.dtype.element_ty), mask=b[None, :] < B)
    if HEAD:
        top = tl.max(y, 0)
        where = tl.min(tl.where(y == top[None, :], row[:, None], N), 0)
        tl.store(best + b * tl.num_programs(0) + pid, top, mask=b < B)
        tl.store(best_row + b * tl.num_programs(0) + pid, where, mask=b < B)


@triton.jit
def fold(
    s: tl.tensor, v: tl.tensor, m: tl.tensor, total: tl.tensor, acc: tl.tensor,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:  # fmt: skip
    """One tile into a running softmax (base 2). s: [ROWS, T], -inf where there is nothing; v: [T, D]."""
    new = tl.maximum(m, tl.max(s, 1))
    safe = tl.where(new == float("-inf"), 0.0, new)
    shrink = tl.exp2(m - safe)
    p = tl.exp2(s - safe[:, None])
    return new, total * shrink + tl.sum(p, 1), tl.dot(p.to(v.dtype), v, acc * shrink[:, None])


@triton.jit
def attend(
    qkv: tl.tensor, keys: tl.tensor, values: tl.tensor, position: tl.tensor, cos: tl.tensor, sin: tl.tensor,
    q_gain: tl.tensor, k_gain: tl.tensor, out: tl.tensor, part: tl.tensor, part_m: tl.tensor, part_l: tl.tensor,
    eps: tl.tensor, scale: tl.tensor, max_ctx: tl.tensor, HEADS: tl.constexpr, KV_HEADS: tl.constexpr,
    D: tl.constexpr, FUSED: tl.constexpr, QK_NORM: tl.constexpr, SPLITS: tl.constexpr, BLOCK_T: tl.constexpr,
    PDL: tl.constexpr,
) -> None:  # fmt: skip
    """Attention of one token a sequence; a program has one kv head (with its group of query heads, padded to 16 rows)
    and one part of the context. keys, values: [B, KV_HEADS, max_ctx, D]; position: i64 [1], of the step's token.

    FUSED: qkv is [B, (HEADS + 2 KV_HEADS) D] as projected: normalise (QK_NORM), rotate, append, attend; else qkv is
    [B, HEADS, D], rotated, and the cache holds the step's token already. cos, sin: f32 [max_ctx, D/2].
    SPLITS 1 writes out[B, HEADS, D]; more write part f32 [B, HEADS, SPLITS, D], part_m and part_l [B, HEADS, SPLITS].
    """
    HALF: tl.constexpr = D // 2
    GROUP: tl.constexpr = HEADS // KV_HEADS
    b = tl.program_id(0) // KV_HEADS
    kv_head = tl.program_id(0) % KV_HEADS
    split = tl.program_id(1)
    half = tl.arange(0, HALF)
    whole = tl.arange(0, D)
    r = tl.arange(0, 16)
    live = r < GROUP
    if PDL:
        gdc_launch_dependents()
    pos = tl.load(position).to(tl.int32)
    n = pos if FUSED else pos + 1
    each = tl.cdiv(tl.cdiv(n, SPLITS), BLOCK_T) * BLOCK_T
    begin = split * each
    end = tl.minimum(begin + each, n)
    cache = (b * KV_HEADS + kv_head).to(tl.int64) * max_ctx * D
    t = begin + tl.arange(0, BLOCK_T)
    at_k = keys + cache + t[None, :] * D + half[:, None]
    at_v = values + cache + t[:, None] * D + whole[None, :]
    k1 = tl.load(at_k, mask=t[None, :] < end, other=0.0)
    k2 = tl.load(at_k + HALF, mask=t[None, :] < end, other=0.0)
    v = tl.load(at_v, mask=t[:, None] < end, other=0.0)
    if PDL:
        gdc_wait()

    head = kv_head * GROUP + r
    if FUSED:
        base = qkv + b * (HEADS + 2 * KV_HEADS) * D
    else:
        base = qkv + b * HEADS * D
    at_q = base + head[:, None] * D + half[None, :]
    q1 = tl.load(at_q, mask=live[:, None], other=0.0).to(tl.float32)
    q2 = tl.load(at_q + HALF, mask=live[:, None], other=0.0).to(tl.float32)
    if FUSED:
        at_new = base + (HEADS + kv_head) * D
        new1 = tl.load(at_new + half).to(tl.float32)
        new2 = tl.load(at_new + HALF + half).to(tl.float32)
        new_v = tl.load(at_new + KV_HEADS * D + whole)
        if QK_NORM:
            fq = tl.rsqrt((tl.sum(q1 * q1, 1) + tl.sum(q2 * q2, 1)) / D + eps)[:, None]
            q1 = q1 * fq * tl.load(q_gain + half).to(tl.float32)[None, :]
            q2 = q2 * fq * tl.load(q_gain + HALF + half).to(tl.float32)[None, :]
            fk = tl.rsqrt((tl.sum(new1 * new1, 0) + tl.sum(new2 * new2, 0)) / D + eps)
            new1 = new1 * fk * tl.load(k_gain + half).to(tl.float32)
            new2 = new2 * fk * tl.load(k_gain + HALF + half).to(tl.float32)
        c = tl.load(cos + pos * HALF + half)
        s = tl.load(sin + pos * HALF + half)
        rotated = q1 * c[None, :] - q2 * s[None, :]
        q2 = q2 * c[None, :] + q1 * s[None, :]
        q1 = rotated
        rotated_k = (new1 * c - new2 * s).to(keys.dtype.element_ty)
        new2 = (new2 * c + new1 * s).to(keys.dtype.element_ty)
        new1 = rotated_k
    q1 = q1.to(keys.dtype.element_ty)
    q2 = q2.to(keys.dtype.element_ty)

    m = tl.full([16], float("-inf"), tl.float32)
    total = tl.zeros([16], tl.float32)
    acc = tl.zeros([16, D], tl.float32)
    scores = tl.where(t[None, :] < end, tl.dot(q2, k2, tl.dot(q1, k1)) * scale, float("-inf"))
    m, total, acc = fold(scores, v, m, total, acc)
    for start in range(begin + BLOCK_T, end, BLOCK_T):
        t = start + tl.arange(0, BLOCK_T)
        at_k = keys + cache + t[None, :] * D + half[:, None]
        at_v = values + cache + t[:, None] * D + whole[None, :]
        k1 = tl.load(at_k, mask=t[None, :] < end, other=0.0)
        k2 = tl.load(at_k + HALF, mask=t[None, :] < end, other=0.0)
        v = tl.load(at_v, mask=t[:, None] < end, other=0.0)
        scores = tl.where(t[None, :] < end, tl.dot(q2, k2, tl.dot(q1, k1)) * scale, float("-inf"))
        m, total, acc = fold(scores, v, m, total, acc)
    if FUSED:  # noqa: SIM102  (the compiler knows the first, the kernel the second)
        if split == SPLITS - 1:
            mine = tl.sum(q1.to(tl.float32) * new1.to(tl.float32)[None, :], 1)
            mine += tl.sum(q2.to(tl.float32) * new2.to(tl.float32)[None, :], 1)
            mine *= scale
            top = tl.maximum(m, mine)
            shrink = tl.exp2(m - top)
            p = tl.exp2(mine - top)
            total = total * shrink + p
            acc = acc * shrink[:, None] + p[:, None] * new_v.to(tl.float32)[None, :]
            m = top
            tl.store(keys + cache + pos * D + half, new1)
            tl.store(keys + cache + pos * D + HALF + half, new2)
            tl.store(values + cache + pos * D + whole, new_v)
    row = b * HEADS + head
    if SPLITS == 1:
        y = (acc / total[:, None]).to(out.dtype.element_ty)
        tl.store(out + row[:, None] * D + whole[None, :], y, mask=live[:, None])
    else:
        at = row * SPLITS + split
        tl.store(part + at[:, None] * D + whole[None, :], acc, mask=live[:, None])
        tl.store(part_m + at, m, mask=live)
        tl.store(part_l + at, total, mask=live)


@triton.jit
def combine(
    part: tl.tensor, part_m: tl.tensor, part_l: tl.tensor, out: tl.tensor, D: tl.constexpr, SPLITS: tl.constexpr,
    PDL: tl.constexpr,
) -> None:  # fmt: skip
    """Merge the parts of one head (program): out[B, HEADS, D]. At least one part has a position."""
    row = tl.program_id(0)
    split = tl.arange(0, SPLITS)
    d = tl.arange(0, D)
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    m = tl.load(part_m + row * SPLITS + split)
    weight = tl.exp2(m - tl.max(m, 0))
    total = tl.sum(weight * tl.load(part_l + row * SPLITS + split), 0)
    parts = tl.load(part + (row * SPLITS + split[:, None]) * D + d[None, :])
    tl.store(out + row * D + d, (tl.sum(parts * weight[:, None], 0) / total).to(out.dtype.element_ty))


@triton.jit
def sample(
    best: tl.tensor, best_row: tl.tensor, n: tl.tensor, embed: tl.tensor, token: tl.tensor, position: tl.tensor,
    x: tl.tensor, HIDDEN: tl.constexpr, BLOCK: tl.constexpr, BLOCK_H: tl.constexpr, PDL: tl.constexpr,
) -> None:  # fmt: skip
    """Greedy token of sequence `program` out of its n candidates, its embedding into x[B, HIDDEN], position + 1."""
    b = tl.program_id(0)
    if PDL:  # without an early launch of what follows: the next step reads the position before it waits
        gdc_wait()
    at = tl.arange(0, BLOCK)
    top = tl.full([BLOCK], float("-inf"), tl.float32)
    top_row = tl.zeros([BLOCK], tl.int32)
    for start in range(0, n, BLOCK):
        inside = start + at < n
        v = tl.load(best + b * n + start + at, mask=inside, other=float("-inf"))
        i = tl.load(best_row + b * n + start + at, mask=inside, other=0)
        top_row = tl.where(v > top, i, top_row)
        top = tl.maximum(top, v)
    found = tl.min(tl.where(top == tl.max(top, 0), top_row, 2147483647), 0)
    tl.store(token + b, found.to(tl.int64))
    h = tl.arange(0, BLOCK_H)
    for start in range(0, HIDDEN, BLOCK_H):
        inside = start + h < HIDDEN
        row = tl.load(embed + found.to(tl.int64) * HIDDEN + start + h, mask=inside, other=0.0)
        tl.store(x + b * HIDDEN + start + h, row, mask=inside)
    if b == 0:
        tl.store(position, tl.load(position) + 1)

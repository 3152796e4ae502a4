"""The packet ABI, version 2: 128-byte little-endian records and the opcode table.

    byte   0 opcode u16        16 waits   4 x (counter u16, threshold u16)     40 operands 8 x u32 (arena offset / 64)
           2 flags  u16        32 signals 2 x counter u16                      72 dims    12 x u32
           4 worker u16        36 epilogue u16                                120 imms     2 x f32
           6 domain u16        38 reserved u16 (zero)
           8 seq    u32        12 node u32

seq: position in the program's topological order; increases along every worker's list. node: graph node, for people.
domain: which count bounds the row loop at run time (ROWS: rows of this step, SAMPLES: sampled rows of this step).
A row loop is `for t in range(row0, min(row1, count), row_step)`.

Counters are monotonic u32 and never reset: in step e (from 1) a wait is met when counter >= e * total signals of that
counter per step - total + threshold. Thresholds are relative to the step's base. Counter 0 is the *step counter*:
every worker's last packet signals it, every worker's first packet waits for it, and that wait refers to the previous
step (base e - 1), so steps never overlap.

STREAM packets (GPU) compute up to STREAM_COLUMNS rows as the columns of one tensor-core tile. Inside a step they depend
on each other through *published* values instead of counters: every word of a published buffer is its own flag,
UNWRITTEN = not yet written in this step. A published buffer has two copies, by the parity of the step; operands name
copy 0, copy 1 lies `published_bytes` (packet header) behind it. Whoever writes a word of this step's copy also
re-arms the same word of the other copy, whose readers have all ended with the step before. Layouts:

    vec    bf16 [features/32][cols][32]        rows   f32 [cols][stride]      ssq      f32 [features/16][cols]
    keys   u64 [cols][HEAD packets]            tokens u32 [cols]     partial  f32 [..][group * head_dim + 2 * group]
    (partial: maximum and mass of a head behind the sums, padded to a multiple of 4 words)
    state  f32 [features/16][32][4], not published: tile t, lane 4g + q holds rows 16t + g and 16t + g + 8 of columns
           2q and 2q + 1; written and read by the worker that owns the tile
    tiles  bf16 weights [rows/16][features/32][2][8][32]; half h of tile t holds rows 16t + 8h .. + 8, or with a GATED
           epilogue half 0 the gate rows and half 1 the up rows 8t .. 8t + 8
    pages  bf16 KV [block][kv head][k: [2][head_dim/32][8][32] over (p/8, d/32, p%8, d%32), then
           v: [head_dim/16][8][4][2][2][2] over (d/16, d%8, p%8/2, d/8%2, p/8, p%2)]
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum, IntFlag

import numpy as np

ABI_VERSION = 2
PACKET_BYTES = 128
NUM_WAITS, NUM_SIGNALS, NUM_OPERANDS, NUM_DIMS, NUM_IMMS = 4, 2, 8, 12, 2
NO_COUNTER = 0xFFFF
NO_OPERAND = 0xFFFFFFFF
STEP_COUNTER = 0
ALIGN = 64
"""Arena alignment in bytes; operands are stored in units of it."""
UNIT_ROWS = 32
"""Output rows of a weight unit, the smallest tile of a projection on the CPU."""
KV_BLOCK = 16
"""Positions of a KV block (page)."""
STREAM_COLUMNS = 8
"""Rows that a STREAM packet computes together (columns of an mma tile)."""
STREAM_TILE = 16
"""Weight rows of a STREAM tile."""
STREAM_CHUNK = 32
"""Features of a chunk: 16 rows x 32 features of bf16 are 1 KiB, what a warp multiplies by two mma instructions."""
UNWRITTEN = 0xFFFFFFFF
"""Word of a published buffer that this step has not written yet; no bf16 pair and no finite f32 has these bits."""
LANES = 16
"""Activation row strides are multiples of this many floats; padding columns are zero."""

PACKET = np.dtype(
    [
        ("opcode", "<u2"),
        ("flags", "<u2"),
        ("worker", "<u2"),
        ("domain", "<u2"),
        ("seq", "<u4"),
        ("node", "<u4"),
        ("waits", [("counter", "<u2"), ("threshold", "<u2")], (NUM_WAITS,)),
        ("signals", "<u2", (NUM_SIGNALS,)),
        ("epilogue", "<u2"),
        ("reserved", "<u2"),
        ("operands", "<u4", (NUM_OPERANDS,)),
        ("dims", "<u4", (NUM_DIMS,)),
        ("imms", "<f4", (NUM_IMMS,)),
    ]
)
assert PACKET.itemsize == PACKET_BYTES


class Domain(IntEnum):
    ROWS = 0
    SAMPLES = 1


class Flag(IntFlag):
    NORM = 1
    """The input rows are RMS-normalised before the projection (operand norm_weight, imm eps)."""
    QK_NORM = 2
    """q and k heads are RMS-normalised before rope (operands q_norm, k_norm, imm qk_eps)."""
    ROPE = 4
    """q and k are rotated (operand rope)."""
    BF16_DOT = 8
    """Activations are rounded to bf16 and multiplied by bf16 dot-product instructions (not bit-equal to fp32)."""
    RESIDUAL = 16
    """The result is added to operand residual before it is stored."""
    F32_ROWS = 32
    """y is published as f32 rows instead of a bf16 vec."""


class Act(IntEnum):
    NONE = 0
    SILU = 1
    GELU_TANH = 2


class Epilogue(IntEnum):
    """What a projection does with its sums, and the function of an ELEMENTWISE packet."""

    STORE = 0
    GATED_SILU = 1
    GATED_GELU_TANH = 2
    ADD = 3
    MUL = 4
    SCALE = 5
    SILU = 6
    GELU_TANH = 7
    SOFTCAP = 8
    ACT_MUL_SILU = 9
    ACT_MUL_GELU_TANH = 10


class Opcode(IntEnum):
    NOP = 0
    EMBED = 1
    NORM = 2
    LINEAR = 3
    QKV = 4
    ROPE = 5
    KV_APPEND = 6
    ATTENTION = 7
    ELEMENTWISE = 8
    SELECT = 9
    SAMPLE = 10
    STREAM_EMBED = 16
    STREAM_LINEAR = 17
    STREAM_NORM = 18
    STREAM_ATTENTION = 19
    STREAM_HEAD = 20
    STREAM_SAMPLE = 21


NO_FLAGS = Flag(0)


@dataclass(frozen=True)
class OpcodeSpec:
    """operands: name -> (mode, what it holds); mode "r", "w" or "rw". dims, imms: name -> meaning.

    Names are positions: the i-th name is operands[i], dims[i], imms[i] of the record.
    """

    doc: str
    operands: dict[str, tuple[str, str]] = field(default_factory=dict)
    dims: dict[str, str] = field(default_factory=dict)
    imms: dict[str, str] = field(default_factory=dict)
    flags: Flag = NO_FLAGS
    epilogues: tuple[Epilogue, ...] = ()


ROW = {"row0": "first row", "row1": "end of rows", "row_step": "row stride of the loop"}
STREAM_TILES = {
    "tile0": "first tile of 16 output features",
    "tile1": "end of tiles",
    "k": "input features, a multiple of 32",
    "cols": "columns of published values, 1 or 8",
}
STREAM_OUT = {
    "state": ("w", "state: x, for the worker's own later packets"),
    "y": ("w", "vec: x * next_norm (1 without it), rounded to bf16"),
    "next_norm": ("r", "f32 vector: weight of the norm that reads y"),
    "next_ssq": ("w", "ssq: sum of x^2 over each tile"),
}
"""What a STREAM packet does with its result x: each of the operands that is given."""
OPCODES: dict[Opcode, OpcodeSpec] = {
    Opcode.NOP: OpcodeSpec("does nothing but wait and signal"),
    Opcode.EMBED: OpcodeSpec(
        "y[t] = table[tokens[t]] * scale; the table is in unit layout",
        {"table": ("r", "bf16 weight units"), "y": ("w", "f32 rows")},
        ROW | {"width": "features", "y_stride": "floats a row", "vocab": "rows of the table"},
        {"scale": "multiplier"},
    ),
    Opcode.NORM: OpcodeSpec(
        "y[t] = x[t] / sqrt(mean over each group of x^2 + eps) * weight (+ residual[t])",
        {
            "x": ("r", "f32 rows"),
            "weight": ("r", "f32 vector of `group`"),
            "y": ("w", "f32 rows"),
            "residual": ("r", "f32 rows"),
        },
        ROW
        | {
            "width": "features",
            "group": "features normalised together",
            "x_stride": "floats a row",
            "y_stride": "floats a row",
            "residual_stride": "floats a row",
        },
        {"eps": "added to the mean square"},
        Flag.RESIDUAL,
    ),
    Opcode.LINEAR: OpcodeSpec(
        "y[t, n] = epilogue(sum over k of x[t, k] * w[n, k] (+ bias[n])) for the rows n of units unit0..unit1; GATED "
        "epilogues take units of 16 gate rows and 16 up rows and store 16 columns a unit: act(gate) * up",
        {
            "x": ("r", "f32 rows"),
            "weight": ("r", "bf16 weight units"),
            "norm_weight": ("r", "f32 vector of k"),
            "bias": ("r", "f32 vector of n"),
            "residual": ("r", "f32 rows"),
            "y": ("w", "f32 rows"),
        },
        ROW
        | {
            "unit0": "first unit",
            "unit1": "end of units",
            "k": "input features",
            "n": "valid output columns of y",
            "x_stride": "floats a row",
            "y_stride": "floats a row",
            "residual_stride": "floats a row",
        },
        {"eps": "of the norm before"},
        Flag.NORM | Flag.BF16_DOT | Flag.RESIDUAL,
        (Epilogue.STORE, Epilogue.GATED_SILU, Epilogue.GATED_GELU_TANH),
    ),
    Opcode.QKV: OpcodeSpec(
        "grouped q, k, v projection of heads head0..head1 (q heads, then k heads, then v heads; head_dim rows each), "
        "then per-head norm and rope on q and k; q goes to y, k and v into the KV blocks of the row's sequence",
        {
            "x": ("r", "f32 rows"),
            "weight": ("r", "bf16 weight units"),
            "norm_weight": ("r", "f32 vector of k"),
            "q_norm": ("r", "f32 vector of head_dim"),
            "k_norm": ("r", "f32 vector of head_dim"),
            "rope": ("r", "f32 [max_ctx][rotary_dim]: cos halves, then sin halves"),
            "y": ("w", "f32 rows of q"),
            "kv": ("w", "the layer's KV blocks"),
        },
        ROW
        | {
            "head0": "first head",
            "head1": "end of heads",
            "k": "input features",
            "num_heads": "q heads",
            "num_kv_heads": "k heads = v heads",
            "head_dim": "features a head",
            "rotary_dim": "rotated features",
            "x_stride": "floats a row",
            "y_stride": "floats a row of q",
        },
        {"eps": "of the norm before", "qk_eps": "of the q/k norms"},
        Flag.NORM | Flag.QK_NORM | Flag.ROPE | Flag.BF16_DOT,
    ),
    Opcode.ROPE: OpcodeSpec(
        "y = x with pairs (i, i + rotary_dim/2) of each head rotated by the row's position; with NORM each head is "
        "RMS-normalised first",
        {
            "x": ("r", "f32 rows"),
            "rope": ("r", "f32 [max_ctx][rotary_dim]"),
            "y": ("w", "f32 rows"),
            "norm_weight": ("r", "f32 vector of head_dim"),
        },
        ROW
        | {
            "num_heads": "heads",
            "head_dim": "features a head",
            "rotary_dim": "rotated features",
            "x_stride": "floats a row",
            "y_stride": "floats a row",
        },
        {"eps": "of the norm before"},
        Flag.NORM,
    ),
    Opcode.KV_APPEND: OpcodeSpec(
        "k[t] and v[t] go into the KV block of row t's sequence position",
        {"k": ("r", "f32 rows"), "v": ("r", "f32 rows"), "kv": ("w", "the layer's KV blocks")},
        ROW
        | {
            "num_kv_heads": "heads",
            "head_dim": "features a head",
            "k_stride": "floats a row",
            "v_stride": "floats a row",
        },
    ),
    Opcode.ATTENTION: OpcodeSpec(
        "y[t, h] = softmax(q[t, h] k^T * scale) v over positions max(0, p + 1 - window)..p of row t's sequence "
        "(window 0 = all), q heads head0..head1; scores are softcap * tanh(score / softcap) if softcap > 0",
        {"q": ("r", "f32 rows"), "kv": ("r", "the layer's KV blocks"), "y": ("w", "f32 rows")},
        ROW
        | {
            "head0": "first q head",
            "head1": "end of q heads",
            "num_heads": "q heads",
            "num_kv_heads": "kv heads",
            "head_dim": "features a head",
            "window": "0 = all",
            "q_stride": "floats a row",
            "y_stride": "floats a row",
        },
        {"scale": "factor on the scores", "softcap": "0 = off"},
    ),
    Opcode.ELEMENTWISE: OpcodeSpec(
        "y = f(a, b), f named by the epilogue; unary functions ignore b; ACT_MUL is act(a) * b",
        {"a": ("r", "f32 rows"), "b": ("r", "f32 rows"), "y": ("w", "f32 rows")},
        ROW | {"width": "features", "a_stride": "floats a row", "b_stride": "floats a row", "y_stride": "floats a row"},
        {"factor": "of SCALE, cap of SOFTCAP"},
        Flag(0),
        (
            Epilogue.ADD,
            Epilogue.MUL,
            Epilogue.SCALE,
            Epilogue.SILU,
            Epilogue.GELU_TANH,
            Epilogue.SOFTCAP,
            Epilogue.ACT_MUL_SILU,
            Epilogue.ACT_MUL_GELU_TANH,
        ),
    ),
    Opcode.SELECT: OpcodeSpec(
        "y[s] = x[sample_rows[s]] (domain SAMPLES)",
        {"x": ("r", "f32 rows"), "y": ("w", "f32 rows")},
        ROW | {"width": "features", "x_rows": "rows of x", "x_stride": "floats a row", "y_stride": "floats a row"},
    ),
    Opcode.SAMPLE: OpcodeSpec(
        "picks a token of each sampled row by its sampling parameters (domain SAMPLES); with advance set, it is also "
        "the row's next input token and the row's position moves on by one",
        {"logits": ("r", "f32 rows")},
        ROW | {"vocab": "valid columns", "logits_stride": "floats a row"},
    ),
    Opcode.STREAM_EMBED: OpcodeSpec(
        "x[t] = table[token of row t] * scale for the features of tiles tile0..tile1; see STREAM_OUT. The token is the "
        "one that the step before published, in a call's first step the batch's",
        {"table": ("r", "tiles"), "tokens": ("r", "tokens")} | STREAM_OUT,
        STREAM_TILES | {"vocab": "rows of the table"},
        {"scale": "multiplier"},
    ),
    Opcode.STREAM_LINEAR: OpcodeSpec(
        "x[t, n] = sum over k of in[t, k] * w[n, k], times 1 / sqrt(sum of ssq / k + eps) if ssq is given, plus "
        "residual if given; see STREAM_OUT. F32_ROWS: y is rows. GATED: x[t, n] = act(gate) * up",
        {"x": ("r", "vec"), "weight": ("r", "tiles"), "ssq": ("r", "ssq of the input"), "residual": ("r", "state")}
        | STREAM_OUT,
        STREAM_TILES | {"n": "output features", "y_stride": "floats a row of rows"},
        {"eps": "of the norm before"},
        Flag.F32_ROWS,
        (Epilogue.STORE, Epilogue.GATED_SILU, Epilogue.GATED_GELU_TANH),
    ),
    Opcode.STREAM_NORM: OpcodeSpec(
        "x[t] = in[t] / sqrt(sum of ssq / k + eps) * weight, plus residual if given; see STREAM_OUT",
        {
            "x": ("r", "state"),
            "ssq": ("r", "ssq of the input"),
            "weight": ("r", "f32 vector of k"),
            "residual": ("r", "state"),
        }
        | STREAM_OUT,
        STREAM_TILES,
        {"eps": "added to the mean square"},
    ),
    Opcode.STREAM_ATTENTION: OpcodeSpec(
        "attention of row `row` over kv head `kv_head` and its group of q heads. q and k (of all rows of the step that "
        "belong to the sequence) are normalised (QK_NORM) and rotated (ROPE) here; split 0 appends the row's k and v "
        "to its page. Positions before the step's first one of the sequence come from the pages, cut by whole pages "
        "into `splits` parts; every part publishes its partial and merges group * head_dim / splits columns of y; a "
        "part that is alone publishes all columns itself",
        {
            "qkv": ("r", "rows: q heads, k heads, v heads"),
            "q_norm": ("r", "f32 vector of head_dim"),
            "k_norm": ("r", "f32 vector of head_dim"),
            "rope": ("r", "f32 [max_ctx][head_dim]: cos halves, then sin halves"),
            "kv": ("rw", "pages of the layer"),
            "partials": ("rw", "partial [rows][kv head][split]"),
            "y": ("w", "vec"),
        },
        {
            "row": "row of the step",
            "kv_head": "kv head",
            "split": "which part of the context",
            "splits": "parts",
            "num_heads": "q heads",
            "num_kv_heads": "kv heads",
            "head_dim": "features a head",
            "window": "0 = all",
            "qkv_stride": "floats a row of qkv",
            "cols": "columns of published values, 1 or 8",
        },
        {"scale": "factor on the scores", "qk_eps": "of the q/k norms"},
        Flag.QK_NORM | Flag.ROPE,
    ),
    Opcode.STREAM_HEAD: OpcodeSpec(
        "logits[t, n] like STREAM_LINEAR, and the packet's best key of every row: f32 bits of the logit in an order "
        "that compares as unsigned << 32 | ~n, so that the largest key is the first largest logit",
        {
            "x": ("r", "vec"),
            "weight": ("r", "tiles"),
            "ssq": ("r", "ssq of the input"),
            "logits": ("w", "f32 [cols][logits_stride], not published"),
            "keys": ("w", "keys"),
        },
        STREAM_TILES
        | {"n": "valid ids", "logits_stride": "floats a row", "key": "place of its keys", "keys": "keys a row"},
        {"eps": "of the norm before", "softcap": "0 = off"},
    ),
    Opcode.STREAM_SAMPLE: OpcodeSpec(
        "the token of row `row`: the id of the largest key; a row with a temperature takes the token that the "
        "reference sampler takes of its logits",
        {"keys": ("r", "keys"), "logits": ("r", "f32 [cols][logits_stride]"), "tokens": ("w", "tokens")},
        {
            "row": "row of the step",
            "keys": "keys a row",
            "vocab": "valid ids",
            "logits_stride": "floats a row",
            "cols": "columns of published values, 1 or 8",
        },
    ),
}

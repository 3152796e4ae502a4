"""What a packet reads and writes in the arena, as regions that can be compared for overlap.

A region is a rectangle of a row-major buffer, or a whole byte interval (weights, tables, KV of a layer). Dependencies
are derived from these regions alone, by the scheduler and again by the verifier from the decoded bytes. STREAM packets
have no effects of this kind: what orders them is the values that they publish.
"""

from __future__ import annotations

from dataclasses import dataclass

from plow.errors import PacketError
from plow.packet.abi import KV_BLOCK, LANES, UNIT_ROWS, Epilogue, Opcode
from plow.packet.codec import Packet

STREAM = frozenset(op for op in Opcode if op.name.startswith("STREAM_"))
"""Packets that depend on each other through published values."""
ANY_ROW = (0, 1 << 16, 1)
"""Row range that meets every row of a step."""


@dataclass(frozen=True)
class Region:
    """Rows row0, row0+step, ... < row1 and floats col0..col1 of a buffer at byte `offset` with `stride` floats a row.

    A KV region (kv True) has col0..col1 = kv heads (k heads first, then v heads) and stride = bytes of the layer's
    region. A write has the rows that are written: a step never holds a position of a sequence twice, so two rows are
    two cells. A read may meet the cell of any row.
    """

    offset: int
    stride: int
    row0: int
    row1: int
    step: int
    col0: int
    col1: int
    kv: bool = False

    def interval(self) -> tuple[int, int]:
        """Smallest byte interval that covers the region."""
        if self.kv:
            return self.offset, self.offset + self.stride
        return (
            self.offset + 4 * (self.row0 * self.stride + self.col0),
            self.offset + 4 * ((self.row1 - 1) * self.stride + self.col1),
        )


@dataclass(frozen=True)
class Effect:
    mode: str
    """r or w"""
    operand: str
    region: Region


def overlaps(a: Region, b: Region) -> bool:
    """False only if no byte is shared. Same buffer geometry: exact on columns and rows (a step greater than 1 is told
    apart only when both steps are equal); else by covering interval."""
    if a.row0 >= a.row1 or b.row0 >= b.row1:
        return False
    if a.offset == b.offset and a.stride == b.stride and a.kv == b.kv:
        if a.col1 <= b.col0 or b.col1 <= a.col0:
            return False
        if a.row1 <= b.row0 or b.row1 <= a.row0:
            return False
        return not (a.step == b.step and (a.row0 - b.row0) % a.step)
    (a0, a1), (b0, b1) = a.interval(), b.interval()
    return a0 < b1 and b0 < a1


def effects(p: Packet, num_kv_blocks: int) -> list[Effect]:
    """Reads and writes of activations and KV. Weights and tables are constant and leave no effect.
    Raises PacketError for a STREAM packet.

    num_kv_blocks: blocks of every layer's KV region (limits of the packet file).
    """
    d = p.dims
    if p.opcode == Opcode.NOP:
        return []
    if p.opcode in STREAM:
        raise PacketError("published values are no effects", f"packet {p.seq} {p.opcode.name}", "no counters order it")
    rows = (d["row0"], d["row1"], d["row_step"])
    found: list[Effect] = []

    def use(mode: str, operand: str, stride: str, col0: int, col1: int, where: tuple[int, int, int] = rows) -> None:
        if operand in p.operands:
            found.append(Effect(mode, operand, Region(p.operands[operand], d[stride], *where, col0, col1)))

    def use_kv(mode: str, head0: int, head1: int) -> None:
        cells = rows if mode == "w" else ANY_ROW
        size = kv_region_bytes(num_kv_blocks, d["num_kv_heads"], d["head_dim"])
        found.append(Effect(mode, "kv", Region(p.operands["kv"], size, *cells, head0, head1, kv=True)))

    match p.opcode:
        case Opcode.EMBED:
            use("w", "y", "y_stride", 0, d["width"])
        case Opcode.NORM:
            use("r", "x", "x_stride", 0, d["width"])
            use("r", "residual", "residual_stride", 0, d["width"])
            use("w", "y", "y_stride", 0, d["width"])
        case Opcode.LINEAR:
            gated = p.epilogue in (Epilogue.GATED_SILU, Epilogue.GATED_GELU_TANH)
            width = LANES if gated else UNIT_ROWS
            cols = (d["unit0"] * width, min(d["n"], d["unit1"] * width))
            use("r", "x", "x_stride", 0, d["k"])
            use("r", "residual", "residual_stride", *cols)
            use("w", "y", "y_stride", *cols)
        case Opcode.QKV:
            h0, h1, nq, nkv, hd = d["head0"], d["head1"], d["num_heads"], d["num_kv_heads"], d["head_dim"]
            use("r", "x", "x_stride", 0, d["k"])
            if h0 < nq:
                use("w", "y", "y_stride", h0 * hd, min(h1, nq) * hd)
            for base in (nq, nq + nkv):
                lo, hi = max(h0, base) - base, min(h1, base + nkv) - base
                if lo < hi:
                    # k and v heads of one block are different bytes: number v heads after the k heads
                    shift = base - nq
                    use_kv("w", lo + shift, hi + shift)
        case Opcode.ROPE:
            width = d["num_heads"] * d["head_dim"]
            use("r", "x", "x_stride", 0, width)
            use("w", "y", "y_stride", 0, width)
        case Opcode.KV_APPEND:
            width = d["num_kv_heads"] * d["head_dim"]
            use("r", "k", "k_stride", 0, width)
            use("r", "v", "v_stride", 0, width)
            use_kv("w", 0, 2 * d["num_kv_heads"])
        case Opcode.ATTENTION:
            hd, group = d["head_dim"], d["num_heads"] // d["num_kv_heads"]
            kv0, kv1 = d["head0"] // group, -(-d["head1"] // group)
            use("r", "q", "q_stride", d["head0"] * hd, d["head1"] * hd)
            use_kv("r", kv0, kv1)
            use_kv("r", kv0 + d["num_kv_heads"], kv1 + d["num_kv_heads"])
            use("w", "y", "y_stride", d["head0"] * hd, d["head1"] * hd)
        case Opcode.ELEMENTWISE:
            use("r", "a", "a_stride", 0, d["width"])
            use("r", "b", "b_stride", 0, d["width"])
            use("w", "y", "y_stride", 0, d["width"])
        case Opcode.SELECT:
            use("r", "x", "x_stride", 0, d["width"], (0, d["x_rows"], 1))
            use("w", "y", "y_stride", 0, d["width"])
        case Opcode.SAMPLE:
            use("r", "logits", "logits_stride", 0, d["vocab"])
    return found


def kv_region_bytes(num_kv_blocks: int, num_kv_heads: int, head_dim: int) -> int:
    """Bytes of a layer's KV region: f32 [block][k, v][num_kv_heads][KV_BLOCK * head_dim]."""
    return num_kv_blocks * 2 * num_kv_heads * KV_BLOCK * head_dim * 4

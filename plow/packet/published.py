"""Which words of the published data a STREAM packet writes: who is to blame when one is missing.

A word is four bytes and unwritten while it is 0xFFFFFFFF (docs/packet-abi.md has the layouts).
"""

from __future__ import annotations

import numpy as np

from plow.packet.abi import STREAM_CHUNK, STREAM_TILE, Epilogue, Flag, Opcode
from plow.packet.codec import Packet

UNWRITTEN = 0xFFFFFFFF


def published_words(p: Packet, n_rows: int) -> np.ndarray:
    """Byte offsets in the arena (copy 0), i64, of the words that the packet publishes in a step of n_rows rows.

    Of attention: the columns of y that it may write, alone or as one of its splits; partial results are not counted.
    Empty for packets that publish nothing.
    """
    d, o = p.dims, p.operands
    columns = np.arange(min(n_rows, d.get("cols", 0)))
    found: list[np.ndarray] = []
    if p.opcode in (Opcode.STREAM_EMBED, Opcode.STREAM_LINEAR, Opcode.STREAM_NORM):
        tiles = np.arange(d["tile0"], d["tile1"])
        gated = p.opcode == Opcode.STREAM_LINEAR and p.epilogue != Epilogue.STORE
        if o.get("y") is not None and p.flags & Flag.F32_ROWS:
            features = _features(tiles, STREAM_TILE)
            found.append(o["y"] + 4 * (columns[:, None] * d["y_stride"] + features))
        elif o.get("y") is not None:
            features = _features(tiles, STREAM_TILE // 2 if gated else STREAM_TILE)
            found.append(o["y"] + vec_words(features, columns, d["cols"]))
        if o.get("next_ssq") is not None:
            found.append(o["next_ssq"] + 4 * (tiles * d["cols"] + columns[:, None]))
    elif p.opcode == Opcode.STREAM_HEAD:
        keys = o["keys"] + 8 * (columns * d["keys"] + d["key"])
        found += [keys, keys + 4]
    elif p.opcode == Opcode.STREAM_ATTENTION and d["row"] < n_rows:
        width = d["num_heads"] // d["num_kv_heads"] * d["head_dim"]
        column = np.array([0 if d["cols"] == 1 else d["row"]])
        found.append(o["y"] + vec_words(d["kv_head"] * width + np.arange(width), column, d["cols"]))
    elif p.opcode == Opcode.STREAM_SAMPLE and d["row"] < n_rows:
        found.append(np.array([o["tokens"] + 4 * d["row"]]))
    return np.concatenate([np.ravel(f) for f in found]).astype(np.int64) if found else np.zeros(0, np.int64)


def _features(tiles: np.ndarray, each: int) -> np.ndarray:
    return (tiles[:, None] * each + np.arange(each)).ravel()


def vec_words(features: np.ndarray, columns: np.ndarray, cols: int) -> np.ndarray:
    """Byte offsets in a vec of the words of some features (a word holds an even one and the next) in some columns."""
    even = features[features % 2 == 0]
    return (even // STREAM_CHUNK * cols + columns[:, None]) * 2 * STREAM_CHUNK + even % STREAM_CHUNK * 2

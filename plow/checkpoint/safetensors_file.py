"""One safetensors file: its header, checked against the bytes that are there.

Layout (safetensors format specification): u64 little-endian header length, a JSON header padded with spaces, then the
data section; `data_offsets` of a tensor count from the start of the data section and tile it without gaps.
"""

from __future__ import annotations

import json
import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from plow.errors import CheckpointError

DTYPES: dict[str, np.dtype] = {
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F16": np.dtype(np.float16),
    "F32": np.dtype(np.float32),
    "F64": np.dtype(np.float64),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
    "I8": np.dtype(np.int8),
    "I16": np.dtype(np.int16),
    "I32": np.dtype(np.int32),
    "I64": np.dtype(np.int64),
    "U8": np.dtype(np.uint8),
    "U16": np.dtype(np.uint16),
    "U32": np.dtype(np.uint32),
    "U64": np.dtype(np.uint64),
    "BOOL": np.dtype(np.bool_),
}
MAX_HEADER_BYTES = 100_000_000
"""The limit of the reference implementation."""


@dataclass(frozen=True)
class TensorInfo:
    """dtype: safetensors name ("BF16", "F32", ...); file: the shard; start, end: byte range in the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: Path
    start: int
    end: int


@dataclass(frozen=True)
class SafetensorsFile:
    """A checked file: tensors by name, the raw header bytes (they pin names, shapes, dtypes, offsets) and its size."""

    path: Path
    tensors: dict[str, TensorInfo]
    header: bytes
    size: int


def read_header(path: Path) -> SafetensorsFile:
    """Read and check the header of one file; no tensor data is touched.

    Raises CheckpointError when the file is truncated or has trailing bytes, when the header is no valid JSON, when a
    tensor has an unknown dtype, or when its byte range does not fit its shape or overlaps another.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as f:
            head = f.read(8)
            length = struct.unpack("<Q", head)[0] if len(head) == 8 else 0
            raw = f.read(length) if 0 < length <= min(MAX_HEADER_BYTES, size - 8) else b""
    except OSError as e:
        raise CheckpointError(
            f"cannot read the file: {e.strerror}", str(path), "check the path and its permissions"
        ) from e
    if not raw:
        raise CheckpointError(
            f"no safetensors header in {size} bytes", path.name, "the file is truncated: fetch it again"
        )
    try:
        entries = json.loads(raw)
    except ValueError as e:
        raise CheckpointError(
            "the safetensors header is no JSON", path.name, "the file is damaged: fetch it again"
        ) from e
    if not isinstance(entries, dict):
        raise CheckpointError(
            "the safetensors header is no JSON object", path.name, "the file is damaged: fetch it again"
        )
    entries.pop("__metadata__", None)
    base = 8 + len(raw)
    tensors = {name: _tensor(name, entry, path, base) for name, entry in entries.items()}
    _check_tiling(tensors, path, base, size)
    return SafetensorsFile(path, tensors, raw, size)


def _tensor(name: str, entry: Any, path: Path, base: int) -> TensorInfo:
    where = f"{path.name}: {name}"
    try:
        dtype, shape, (start, end) = entry["dtype"], tuple(int(d) for d in entry["shape"]), entry["data_offsets"]
    except (KeyError, TypeError, ValueError) as e:
        raise CheckpointError("malformed header entry", where, "the file is damaged: fetch it again") from e
    if dtype not in DTYPES:
        raise CheckpointError(f"unknown dtype {dtype!r}", where, f"known: {', '.join(DTYPES)}")
    want = math.prod(shape) * DTYPES[dtype].itemsize
    if min(shape, default=0) < 0 or end - start != want:
        raise CheckpointError(
            f"{end - start} bytes for {dtype} {list(shape)}, which needs {want}",
            where,
            "the file is damaged: fetch it again",
        )
    return TensorInfo(name, dtype, shape, path, base + start, base + end)


def _check_tiling(tensors: dict[str, TensorInfo], path: Path, base: int, size: int) -> None:
    at = base
    for t in sorted(tensors.values(), key=lambda t: (t.start, t.end)):
        if t.start != at:
            raise CheckpointError(
                f"bytes {at}..{t.start} overlap or belong to no tensor",
                f"{path.name}: {t.name}",
                "the file is damaged: fetch it again",
            )
        at = t.end
    if at > size:
        raise CheckpointError(
            f"the file has {size} bytes, its header promises {at}", path.name, "the file is truncated: fetch it again"
        )
    if at < size:
        raise CheckpointError(
            f"{size - at} bytes follow the last tensor", path.name, "the file is damaged: fetch it again"
        )

"""A damaged safetensors file is refused by name, before any tensor is read."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from plow.checkpoint.safetensors_file import read_header
from plow.errors import CheckpointError


def write(path: Path, entries: object, data: bytes = b"", header: bytes | None = None) -> Path:
    raw = header if header is not None else json.dumps(entries).encode()
    path.write_bytes(struct.pack("<Q", len(raw)) + raw + data)
    return path


def entry(dtype: str = "F32", shape: tuple[int, ...] = (2,), start: int = 0, end: int = 8) -> dict[str, object]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}


def test_header_agrees_with_the_safetensors_library(tmp_path: Path) -> None:
    tensors = {
        "a": np.arange(6, dtype=np.float32).reshape(2, 3),
        "b": np.ones(3, ml_dtypes.bfloat16),
        "c": np.int64(7)[None],
    }
    save_file(tensors, tmp_path / "x.safetensors", metadata={"format": "pt"})
    file = read_header(tmp_path / "x.safetensors")
    assert set(file.tensors) == {"a", "b", "c"}
    raw = (tmp_path / "x.safetensors").read_bytes()
    for name, want in load_file(tmp_path / "x.safetensors").items():
        t = file.tensors[name]
        assert t.shape == want.shape and raw[t.start : t.end] == want.tobytes()


def test_a_whole_file_is_accepted_and_every_truncation_of_it_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "x.safetensors", {"a": entry()}, bytes(8))
    whole = path.read_bytes()
    assert read_header(path).size == len(whole)
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(CheckpointError, match=r"truncated|damaged"):
            read_header(path)


@pytest.mark.parametrize(
    ("entries", "data", "words"),
    [
        ({"a": entry()}, bytes(9), "1 bytes follow"),
        ({"a": entry("F31")}, bytes(8), "unknown dtype 'F31'"),
        ({"a": entry(shape=(3,))}, bytes(8), "needs 12"),
        ({"a": entry(shape=(-2,), end=-8)}, b"", "needs -8"),
        ({"a": entry(), "b": entry(start=4, end=12)}, bytes(12), "overlap"),
        ({"a": entry(), "b": entry(start=12, end=20)}, bytes(20), "belong to no tensor"),
        ({"a": {"dtype": "F32", "shape": [2]}}, bytes(8), "malformed header entry"),
        ([1], b"", "no JSON object"),
    ],
)
def test_each_inconsistency_of_a_header_is_named(tmp_path: Path, entries: object, data: bytes, words: str) -> None:
    with pytest.raises(CheckpointError, match=words):
        read_header(write(tmp_path / "x.safetensors", entries, data))


def test_a_header_that_is_no_json_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no JSON"):
        read_header(write(tmp_path / "x.safetensors", None, header=b"{nonsense"))


def test_an_unreadable_path_is_a_typed_error(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="cannot read"):
        read_header(tmp_path / "absent.safetensors")

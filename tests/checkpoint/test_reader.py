"""Opening a checkpoint directory: what is whole opens, what is contradictory is refused with the file's name."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from plow.checkpoint import Checkpoint
from plow.checkpoint.reader import INDEX
from plow.errors import CheckpointError
from plow.oracle import tiny


@pytest.fixture
def single(tiny_llama: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_llama, tmp_path / "single"))


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    return tiny.write(tmp_path / "sharded", tiny.LLAMA, seed=1, shards=3)


def edit_json(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


def test_shards_and_a_single_file_hold_the_same_tensors(tiny_llama: Path, sharded: Path) -> None:
    one, many = Checkpoint.open(tiny_llama), Checkpoint.open(sharded)
    assert len(many.files) == 3
    assert one.tensors.keys() == many.tensors.keys()
    for name in one.tensors:
        assert np.array_equal(one.tensor(name).view(np.uint16), many.tensor(name).view(np.uint16))


def test_a_tensor_is_a_read_only_view_of_the_mapped_file(tiny_llama: Path) -> None:
    checkpoint = Checkpoint.open(tiny_llama)
    want = load_file(tiny_llama / "model.safetensors")
    for name in checkpoint.tensors:
        got = checkpoint.tensor(name)
        assert got.dtype == ml_dtypes.bfloat16 and not got.flags.writeable and not got.flags.owndata
        assert np.array_equal(got.view(np.uint16), want[name].view(np.uint16))
    with pytest.raises(CheckpointError, match=r"no tensor 'model.nothing'"):
        checkpoint.tensor("model.nothing")


def test_a_shard_that_the_index_names_and_the_disk_lacks_is_refused(sharded: Path) -> None:
    (sharded / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"model-00002-of-00003.safetensors is named by the index and missing"):
        Checkpoint.open(sharded)


def test_a_tensor_in_another_shard_than_the_index_says_is_refused(sharded: Path) -> None:
    def move(index: dict[str, Any]) -> None:
        index["weight_map"]["model.embed_tokens.weight"] = "model-00003-of-00003.safetensors"

    edit_json(sharded / INDEX, move)
    with pytest.raises(CheckpointError, match=r"the index assigns it to model-00003-of-00003.safetensors"):
        Checkpoint.open(sharded)


def test_a_tensor_that_the_index_omits_is_refused(sharded: Path) -> None:
    edit_json(sharded / INDEX, lambda index: index["weight_map"].pop("model.norm.weight"))
    with pytest.raises(CheckpointError, match=r"'model.norm.weight' is in the shard but not in the index"):
        Checkpoint.open(sharded)


def test_a_tensor_that_is_missing_in_its_shard_is_refused(sharded: Path) -> None:
    edit_json(sharded / INDEX, lambda i: i["weight_map"].update(extra="model-00001-of-00003.safetensors"))
    with pytest.raises(CheckpointError, match="'extra' is assigned to this shard and missing in it"):
        Checkpoint.open(sharded)


@pytest.mark.parametrize("name", ["model.safetensors", "adapter_model.safetensors"])
def test_a_stray_weight_file_beside_the_shards_is_refused(sharded: Path, name: str) -> None:
    save_file({"x": np.zeros(1, np.float32)}, sharded / name)
    with pytest.raises(CheckpointError, match=f"stray weight file {name}"):
        Checkpoint.open(sharded)


def test_a_stray_file_beside_a_single_file_is_refused(single: Path) -> None:
    save_file({"x": np.zeros(1, np.float32)}, single / "model-00001-of-00002.safetensors")
    with pytest.raises(CheckpointError, match="stray weight file model-00001-of-00002"):
        Checkpoint.open(single)


def test_a_consolidated_duplicate_in_another_layout_is_left_alone(single: Path) -> None:
    save_file({"x": np.zeros(1, np.float32)}, single / "consolidated.safetensors")
    assert "x" not in Checkpoint.open(single).tensors


def test_shards_without_an_index_are_refused(sharded: Path) -> None:
    (sharded / INDEX).unlink()
    with pytest.raises(CheckpointError, match=f"shards without {INDEX}"):
        Checkpoint.open(sharded)


@pytest.mark.parametrize("weight_map", [None, {}, {"a": 1}, {"a": "../model.safetensors"}])
def test_an_unusable_index_is_refused(sharded: Path, weight_map: object) -> None:
    (sharded / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(CheckpointError, match="no usable weight_map"):
        Checkpoint.open(sharded)


def test_a_truncated_weight_file_is_refused(single: Path) -> None:
    path = single / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match="truncated"):
        Checkpoint.open(single)


def test_weights_in_another_format_are_refused_with_their_name(single: Path) -> None:
    (single / "model.safetensors").rename(single / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"no safetensors file .* convert pytorch_model.bin"):
        Checkpoint.open(single)


def test_a_directory_without_weights_is_refused(single: Path) -> None:
    (single / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="no safetensors file"):
        Checkpoint.open(single)


@pytest.mark.parametrize(
    ("text", "words"), [(None, "config.json is missing"), ("{", "no valid JSON"), ("[]", "no JSON object")]
)
def test_a_bad_config_json_is_refused(single: Path, text: str | None, words: str) -> None:
    (single / "config.json").unlink()
    if text is not None:
        (single / "config.json").write_text(text)
    with pytest.raises(CheckpointError, match=words):
        Checkpoint.open(single)


def test_a_missing_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no such checkpoint directory"):
        Checkpoint.open(tmp_path / "nowhere")


def test_tokenizer_files_and_vocabulary_are_found(single: Path) -> None:
    checkpoint = Checkpoint.open(single)
    assert [p.name for p in checkpoint.tokenizer_files] == [
        "tokenizer.json",
        "tokenizer_config.json",
        "generation_config.json",
    ]
    assert checkpoint.tokenizer_size == tiny.VOCAB_SIZE and checkpoint.token_ids["<|im_end|>"] == 2
    (single / "tokenizer.json").unlink()
    assert Checkpoint.open(single).tokenizer_size == 0


def test_the_digest_follows_config_and_headers_and_the_full_one_every_byte(single: Path) -> None:
    cheap, full = Checkpoint.open(single).digest(), Checkpoint.open(single).digest(full=True)
    assert cheap.startswith("sha256:") and cheap != full and cheap == Checkpoint.open(single).digest()
    data = bytearray((single / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (single / "model.safetensors").write_bytes(data)
    assert Checkpoint.open(single).digest() == cheap
    assert Checkpoint.open(single).digest(full=True) != full
    edit_json(single / "config.json", lambda c: c.update(rms_norm_eps=1e-6))
    assert Checkpoint.open(single).digest() != cheap

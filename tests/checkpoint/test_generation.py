"""End tokens are the union of what three files say."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from plow.checkpoint import Checkpoint
from plow.errors import CheckpointError


@pytest.fixture
def directory(tiny_llama: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_llama, tmp_path / "c"))


def update(path: Path, **fields: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def test_eos_is_the_union_of_config_generation_config_and_tokenizer(directory: Path) -> None:
    update(directory / "config.json", eos_token_id=5)
    update(directory / "generation_config.json", eos_token_id=[7, 5])
    update(directory / "tokenizer_config.json", eos_token={"content": "<|im_start|>"})
    generation = Checkpoint.open(directory).generation
    assert generation.eos_token_ids == (5, 7, 3)
    assert generation.sources == {"config.json": (5,), "generation_config.json": (7, 5), "tokenizer_config.json": (3,)}


def test_without_the_optional_files_config_json_decides(directory: Path) -> None:
    for name in ("generation_config.json", "tokenizer_config.json", "tokenizer.json"):
        (directory / name).unlink()
    generation = Checkpoint.open(directory).generation
    assert (generation.eos_token_ids, generation.bos_token_id, generation.pad_token_id) == ((2,), 1, 0)


def test_generation_config_wins_for_bos_and_gives_sampling_defaults(directory: Path) -> None:
    update(directory / "generation_config.json", bos_token_id=9, temperature=0.6, top_p=0.9, cache_implementation="x")
    generation = Checkpoint.open(directory).generation
    assert generation.bos_token_id == 9 and generation.sampling == {"temperature": 0.6, "top_p": 0.9}


def test_minus_one_means_none_and_a_foreign_eos_text_is_no_id(directory: Path) -> None:
    update(directory / "config.json", eos_token_id=-1, pad_token_id=None)
    update(directory / "generation_config.json", eos_token_id=None, pad_token_id=None)
    update(directory / "tokenizer_config.json", eos_token="<not in the vocabulary>")
    generation = Checkpoint.open(directory).generation
    assert generation.eos_token_ids == () and generation.pad_token_id is None


@pytest.mark.parametrize("bad", [320, "2", True, [2, 1.5]])
def test_an_id_outside_the_vocabulary_is_refused(directory: Path, bad: Any) -> None:
    update(directory / "generation_config.json", eos_token_id=bad)
    with pytest.raises(CheckpointError, match=r"outside the vocabulary .*generation_config.json"):
        _ = Checkpoint.open(directory).generation

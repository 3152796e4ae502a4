"""Truncated checkpoints: real layers in fewer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from plow.checkpoint import Checkpoint
from plow.errors import CheckpointError
from plow.graph.reference import run
from plow.models import build, check_weights
from plow.oracle import tiny
from stages.subject import Widened, kinds_of_layers, step_inputs, truncate, truncated_config, truncated_names


def test_the_first_layer_of_every_kind_is_chosen(tiny_llama: Path, tiny_gemma3: Path) -> None:
    assert kinds_of_layers(build(Checkpoint.open(tiny_gemma3).config)) == [0, 1]
    assert kinds_of_layers(build(Checkpoint.open(tiny_llama).config)) == [0, 1]
    assert kinds_of_layers(build(tiny.LLAMA | {"num_hidden_layers": 1})) == [0]


def test_a_truncated_checkpoint_is_complete_and_computes_the_chosen_layers(tiny_gemma3: Path, tmp_path: Path) -> None:
    whole = Checkpoint.open(tiny_gemma3)
    graph = build(whole.config)
    short = Checkpoint.open(truncate(whole, graph, [2, 1], tmp_path / "short"))
    small = build(short.config)
    check_weights(small, short)
    assert [c["window"] for c in small.meta["caches"]] == [8, 0]
    names = truncated_names(list(whole.tensors), [2, 1])
    renamed = Widened({n: whole.tensor(n) for n in whole.tensors}, names)
    stored = Widened({n: short.tensor(n) for n in short.tensors})
    a, b = (run(small, w, step_inputs([5, 9, 4]), {})["logits"] for w in (renamed, stored))
    assert np.array_equal(a, b)


def test_a_layer_pattern_becomes_explicit_layer_types() -> None:
    config = {k: v for k, v in tiny.GEMMA3.items() if k != "layer_types"} | {"sliding_window_pattern": 3}
    short = truncated_config(config, build(config), [0, 2])
    assert short["layer_types"] == ["sliding_attention", "full_attention"] and "sliding_window_pattern" not in short


def test_a_smaller_vocabulary_keeps_the_first_rows_and_drops_the_tokenizer(tiny_llama: Path, tmp_path: Path) -> None:
    whole = Checkpoint.open(tiny_llama)
    short = Checkpoint.open(truncate(whole, build(whole.config), [0], tmp_path / "short", vocab=100))
    check_weights(build(short.config), short)
    name = "model.embed_tokens.weight"
    assert np.array_equal(short.tensor(name), whole.tensor(name)[:100]) and not short.tokenizer_files


def test_tensors_without_layer_numbers_are_a_typed_error(tiny_llama: Path, tmp_path: Path) -> None:
    whole = Checkpoint.open(tiny_llama)
    whole.tensors = {n.replace("model.layers", "h"): t for n, t in whole.tensors.items()}
    with pytest.raises(CheckpointError, match=r"model\.layers"):
        truncate(whole, build(whole.config), [0], tmp_path / "short")

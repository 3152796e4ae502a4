"""A checkpoint fits a graph exactly, or the first tensor that does not is named."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from plow.checkpoint import Checkpoint
from plow.errors import CheckpointError
from plow.models import bind_weights, build, check_weights
from plow.oracle import tiny

Tensors = dict[str, np.ndarray]
NORM, HEAD, EMBED = "model.norm.weight", "lm_head.weight", "model.embed_tokens.weight"


def directory(path: Path, tied: bool = False, change: Callable[[Tensors], object] = lambda t: None) -> Checkpoint:
    """The tiny Llama checkpoint with changed tensors; its config ties the head or not."""
    config = tiny.LLAMA | {"tie_word_embeddings": tied}
    tensors = tiny.tensors(config, 0)
    change(tensors)
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(config))
    save_file(tensors, path / "model.safetensors")
    return Checkpoint.open(path)


def refused(checkpoint: Checkpoint, words: str, round_weights: bool = False) -> str:
    with pytest.raises(CheckpointError, match=words) as e:
        check_weights(build(checkpoint.config), checkpoint, round_weights)
    return e.value.line()


@pytest.mark.parametrize(
    "config", [tiny.LLAMA, tiny.GEMMA3, tiny.QWEN3, tiny.LLAMA | {"attention_bias": True, "mlp_bias": True}]
)
def test_matching_weights_pass(tmp_path: Path, config: dict[str, object]) -> None:
    checkpoint = Checkpoint.open(tiny.write(tmp_path, config))
    check_weights(build(config), checkpoint)


@pytest.mark.parametrize("name", [NORM, EMBED, "model.layers.1.mlp.up_proj.weight"])
def test_a_missing_tensor_is_named(tmp_path: Path, name: str) -> None:
    refused(directory(tmp_path, change=lambda t: t.pop(name)), f"tensor '{re.escape(name)}' is missing")


@pytest.mark.parametrize(
    "name", ["model.layers.0.self_attn.q_proj.bias", "model.layers.2.mlp.up_proj.weight", "score.weight"]
)
def test_an_unused_tensor_is_named(tmp_path: Path, name: str) -> None:
    checkpoint = directory(tmp_path, change=lambda t: t.update({name: np.zeros(4, ml_dtypes.bfloat16)}))
    refused(checkpoint, f"tensor '{re.escape(name)}' is not used")


def test_a_wrong_shape_is_named_with_both_shapes(tmp_path: Path) -> None:
    name = "model.layers.0.self_attn.q_proj.weight"
    checkpoint = directory(tmp_path, change=lambda t: t.update({name: t[name].T.copy()}))
    assert name in refused(checkpoint, re.escape("shape is [64, 128], config.json implies [128, 64]"))
    checkpoint = directory(tmp_path, change=lambda t: t.update({NORM: np.ones(65, ml_dtypes.bfloat16)}))
    assert NORM in refused(checkpoint, re.escape("shape is [65], config.json implies [64]"))


def test_norms_of_q_and_k_are_tensors_of_qwen3_and_not_of_llama(tmp_path: Path) -> None:
    llama, qwen3 = (build(c | {"tie_word_embeddings": True}) for c in (tiny.LLAMA, tiny.QWEN3))
    with_norms = Checkpoint.open(tiny.write(tmp_path / "qwen3", tiny.QWEN3))
    check_weights(qwen3, with_norms)
    with pytest.raises(CheckpointError, match=r"'model.layers.0.self_attn.[qk]_norm.weight' is not used"):
        check_weights(llama, with_norms)
    with pytest.raises(CheckpointError, match=r"'model.layers.0.self_attn.q_norm.weight' is missing"):
        check_weights(qwen3, directory(tmp_path / "llama", tied=True))


def test_a_norm_of_q_and_k_has_the_width_of_a_head(tmp_path: Path) -> None:
    checkpoint = Checkpoint.open(tiny.write(tmp_path, tiny.QWEN3))
    wider = tiny.QWEN3 | {"head_dim": 64, "num_attention_heads": 2, "num_key_value_heads": 1}
    check_weights(build(tiny.QWEN3), checkpoint)
    with pytest.raises(CheckpointError, match=re.escape("shape is [32], config.json implies [64]")) as e:
        check_weights(build(wider), checkpoint)
    assert "_norm.weight" in e.value.line()


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_wider_floats_are_refused_until_rounding_is_asked_for(tmp_path: Path, dtype: type) -> None:
    checkpoint = directory(tmp_path, change=lambda t: t.update({NORM: np.full(64, 1.0 + 2.0**-9, dtype)}))
    assert "round_weights=True" in refused(checkpoint, f"dtype is F{8 * dtype(0).itemsize}, must be BF16")
    weights = bind_weights(build(checkpoint.config), checkpoint, round_weights=True)
    assert weights[NORM].dtype == ml_dtypes.bfloat16 and weights[NORM][0] == 1.0, "ties round to even"


@pytest.mark.parametrize("dtype", [np.int8, ml_dtypes.float8_e4m3fn, np.float64])
def test_other_dtypes_are_refused_even_with_rounding(tmp_path: Path, dtype: type) -> None:
    checkpoint = directory(tmp_path, change=lambda t: t.update({NORM: np.ones(64, dtype)}))
    refused(checkpoint, "must be BF16", round_weights=True)


def test_tied_without_and_untied_with_a_head_tensor_pass(tmp_path: Path) -> None:
    for tied in (False, True):
        checkpoint = directory(tmp_path / str(tied), tied)
        graph = build(checkpoint.config)
        check_weights(graph, checkpoint)
        assert graph.nodes[-1].inputs[1] == (EMBED if tied else HEAD)


def test_untied_without_a_head_tensor_is_refused_with_the_tie_as_hint(tmp_path: Path) -> None:
    assert "tie_word_embeddings" in refused(directory(tmp_path, change=lambda t: t.pop(HEAD)), f"'{HEAD}' is missing")


def test_tied_with_an_equal_head_tensor_passes_and_with_another_one_is_refused(tmp_path: Path) -> None:
    copy = directory(tmp_path / "copy", True, lambda t: t.update({HEAD: t[EMBED].copy()}))
    check_weights(build(copy.config), copy)

    def other(t: Tensors) -> None:
        t[HEAD] = t[EMBED].copy()
        t[HEAD].view(np.uint16)[-1, -1] ^= 1

    refused(directory(tmp_path / "other", True, other), "lm_head.weight differs from the embedding")


def test_bound_weights_are_views_of_the_file_and_know_only_the_graphs_names(tiny_llama: Path) -> None:
    checkpoint = Checkpoint.open(tiny_llama)
    graph = build(checkpoint.config)
    weights = bind_weights(graph, checkpoint)
    assert set(weights) == set(graph.weights) and len(weights) == len(graph.weights)
    assert not weights[EMBED].flags.owndata and not weights[EMBED].flags.writeable
    with pytest.raises(KeyError):
        weights["model.nothing"]

"""GGUF files become Hugging Face directories: the two layout differences are undone, the rest is refused."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tokenizers import Tokenizer

from plow.checkpoint import Checkpoint, gguf_import
from plow.checkpoint.gguf_tokenizer import merges_from_scores
from plow.errors import CheckpointError, ToolMissing

BYTES = [f"<0x{i:02X}>" for i in range(256)]
PIECES = ["▁", "a", "b", "c", "▁a", "ab", "bc", "abc", "▁ab"]
TOKENS = ["<pad>", "<eos>", "<bos>", "<unk>", "\n\n", *BYTES, *PIECES]
TYPES = [3, 3, 3, 2, 4, *[6] * 256, *[1] * len(PIECES)]
SCORES = [-1000.0] * 5 + [0.0] * 256 + [-90.0, -91.0, -92.0, -93.0, -1.0, -3.0, -2.0, -4.0, -5.0]
TOKENIZER: dict[str, Any] = {
    "tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": TOKENS, "tokenizer.ggml.scores": SCORES,
    "tokenizer.ggml.token_type": TYPES, "tokenizer.ggml.bos_token_id": 2, "tokenizer.ggml.eos_token_id": 1,
    "tokenizer.ggml.padding_token_id": 0, "tokenizer.ggml.unknown_token_id": 3, "tokenizer.ggml.add_bos_token": True,
    "tokenizer.ggml.add_space_prefix": False,
}  # fmt: skip


@dataclass(frozen=True)
class Fake(gguf_import.GGUF):
    """Stands for an opened file: the reader library is an optional extra."""

    arrays: dict[str, np.ndarray]

    def tensors(self) -> Iterator[tuple[str, np.ndarray]]:
        yield from self.arrays.items()


def fake(arch: str, arrays: dict[str, np.ndarray], **changes: Any) -> Fake:
    geometry = {
        "block_count": 1, "embedding_length": 8, "feed_forward_length": 4, "attention.head_count": 2,
        "attention.head_count_kv": 1, "attention.key_length": 4, "context_length": 32, "vocab_size": len(TOKENS),
        "attention.layer_norm_rms_epsilon": float(np.float32(1e-5)), "rope.freq_base": 1e4,
        "attention.sliding_window": 4,
    }  # fmt: skip
    fields = {"general.architecture": arch, **TOKENIZER, **{f"{arch}.{k}": v for k, v in geometry.items()}, **changes}
    return Fake(Path("x.gguf"), fields, list(arrays), None, arrays)


def convert(monkeypatch: pytest.MonkeyPatch, out: Path, gguf: Fake) -> Checkpoint:
    monkeypatch.setattr(gguf_import, "open_gguf", lambda path: gguf)
    gguf_import.convert(Path("x.gguf"), out)
    return Checkpoint.open(out)


def test_llama_queries_and_keys_are_unpermuted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    q = np.arange(64, dtype=np.float32).reshape(8, 8)
    stored = q.reshape(2, 2, 2, 8).swapaxes(1, 2).reshape(8, 8)  # as llama.cpp's converter permutes two heads of 4
    c = convert(monkeypatch, tmp_path, fake("llama", {"blk.0.attn_q.weight": stored, "blk.0.attn_v.weight": q[:4]}))
    assert not np.array_equal(stored, q)
    assert np.array_equal(c.tensor("model.layers.0.self_attn.q_proj.weight").astype(np.float32), q)
    assert np.array_equal(c.tensor("model.layers.0.self_attn.v_proj.weight").astype(np.float32), q[:4])
    assert c.config["rms_norm_eps"] == 1e-5 and c.config["tie_word_embeddings"] is True


def test_gemma_norms_lose_the_one_that_gguf_added_and_weights_do_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ones = np.ones(8, np.float32)
    arrays = {"output_norm.weight": 1.5 * ones, "blk.0.attn_q_norm.weight": ones[:4], "output.weight": ones[None]}
    c = convert(monkeypatch, tmp_path, fake("gemma3", arrays))
    assert np.array_equal(c.tensor("model.norm.weight"), np.full(8, 0.5, ml_dtypes.bfloat16))
    assert not c.tensor("model.layers.0.self_attn.q_norm.weight").any()
    assert np.array_equal(c.tensor("lm_head.weight"), np.ones((1, 8), ml_dtypes.bfloat16))
    assert c.config["tie_word_embeddings"] is False and c.config["layer_types"] == ["sliding_attention"]


def test_the_converted_directory_is_complete(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    c = convert(monkeypatch, tmp_path, fake("gemma3", {"output_norm.weight": np.ones(8, np.float32)}))
    assert c.generation.eos_token_ids == (1,) and c.generation.bos_token_id == 2
    assert json.loads((tmp_path / "tokenizer_config.json").read_text())["eos_token"] == "<eos>"


@pytest.mark.parametrize(
    ("arch", "changes", "name", "words"),
    [
        ("qwen2", {}, "output_norm.weight", "architecture 'qwen2' is not covered"),
        ("llama", {}, "blk.0.ssm_in.weight", "tensor 'blk.0.ssm_in.weight' of the GGUF file is not covered"),
        ("llama", {"tokenizer.ggml.model": "bert"}, "output_norm.weight", "tokenizer.ggml.model 'bert'"),
        ("llama", {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "x"}, "output_norm.weight", "pre 'x'"),
        ("llama", {"tokenizer.ggml.add_space_prefix": True}, "output_norm.weight", "prefix space"),
    ],
)
def test_what_is_not_covered_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, arch: str, changes: dict[str, Any], name: str, words: str
) -> None:
    with pytest.raises(CheckpointError, match=words):
        convert(monkeypatch, tmp_path, fake(arch, {name: np.ones(8, np.float32)}, **changes))


def test_a_missing_field_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    gguf = fake("llama", {})
    del gguf.fields["llama.rope.freq_base"]
    with pytest.raises(CheckpointError, match=r"no field 'llama.rope.freq_base'"):
        convert(monkeypatch, tmp_path, gguf)


def test_without_the_reader_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(ToolMissing, match=r"plow\[demo\]"):
        gguf_import.open_gguf(tmp_path / "x.gguf")


def test_merges_follow_the_scores_of_the_joined_pieces() -> None:
    merges = merges_from_scores(TOKENS, SCORES, TYPES)
    assert merges == [("▁", "a"), ("b", "c"), ("a", "b"), ("ab", "c"), ("a", "bc"), ("▁a", "b"), ("▁", "ab")]


@pytest.fixture
def tokenizer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Tokenizer:
    convert(monkeypatch, tmp_path, fake("gemma3", {"output_norm.weight": np.ones(8, np.float32)}))
    return Tokenizer.from_file(str(tmp_path / "tokenizer.json"))


def test_the_best_scored_join_comes_first_and_the_begin_token_is_added(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("abc abc").tokens == ["<bos>", "abc", "▁a", "bc"]  # ▁+a scores above a+b
    assert tokenizer.encode("a\n\nb", add_special_tokens=False).tokens == ["a", "\n\n", "b"]


@pytest.mark.parametrize("text", ["abc", " a  b ", "naïve 😀👩‍👩‍👧 日本 مرحبا", "tab\tnew\n\n\nline", "\x00"])
def test_any_text_survives_byte_fallback(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False).ids) == text

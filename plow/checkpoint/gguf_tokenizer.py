"""Rebuild tokenizer.json and tokenizer_config.json from the vocabulary inside a GGUF file.

Two kinds: "gpt2" is byte-level BPE with stored merges; "llama" is a SentencePiece BPE vocabulary with scores, whose
merges follow from the scores: SentencePiece always joins the neighbours whose joined piece scores highest.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from plow.errors import CheckpointError

NORMAL, CONTROL, USER_DEFINED = 1, 3, 4
"""tokenizer.ggml.token_type: 1 a piece, 2 unknown, 3 control (special), 4 matched whole before the rest, 6 a byte."""


def write(fields: dict[str, Any], out: Path, model_max_length: int) -> None:
    """fields: GGUF metadata. Raises CheckpointError for a tokenizer kind that is not covered."""
    kind = fields.get("tokenizer.ggml.model")
    if kind == "gpt2":
        tokenizer = _byte_level(fields)
    elif kind == "llama":
        tokenizer = _sentencepiece(fields)
    else:
        raise CheckpointError(f"tokenizer.ggml.model {kind!r} is not covered", "GGUF metadata", "covered: gpt2, llama")
    tokenizer.save(str(out / "tokenizer.json"))
    tokens = fields["tokenizer.ggml.tokens"]
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokens[fields["tokenizer.ggml.bos_token_id"]],
        "eos_token": tokens[fields["tokenizer.ggml.eos_token_id"]],
        "pad_token": tokens[fields["tokenizer.ggml.padding_token_id"]],
        "unk_token": tokens[fields["tokenizer.ggml.unknown_token_id"]],
    }
    if "tokenizer.chat_template" in fields:
        config["chat_template"] = fields["tokenizer.chat_template"]
    config |= {"model_max_length": model_max_length, "clean_up_tokenization_spaces": False}
    (out / "tokenizer_config.json").write_text(json.dumps(config))


def _byte_level(fields: dict[str, Any]) -> Tokenizer:
    pre = fields.get("tokenizer.ggml.pre")
    if pre != "smollm":
        raise CheckpointError(f"tokenizer.ggml.pre {pre!r} is not covered", "GGUF metadata", "covered: smollm")
    tokens, types = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"]
    merges = [tuple(m.split(" ")) for m in fields["tokenizer.ggml.merges"]]
    tok = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges))
    tok.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tok.decoder = decoders.ByteLevel()
    tok.add_special_tokens(
        [
            AddedToken(t, special=True, normalized=False)
            for t, kind in zip(tokens, types, strict=True)
            if kind == CONTROL
        ]
    )
    return tok


def _sentencepiece(fields: dict[str, Any]) -> Tokenizer:
    """BPE over "▁"-escaped text with byte fallback; the begin token is prepended when the file asks for it."""
    tokens, types = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"]
    if fields.get("tokenizer.ggml.add_space_prefix", True):
        raise CheckpointError(
            "a SentencePiece vocabulary with a prefix space is not covered", "GGUF metadata", "covered: none"
        )
    unknown = tokens[fields["tokenizer.ggml.unknown_token_id"]]
    tok = Tokenizer(
        models.BPE(
            vocab={t: i for i, t in enumerate(tokens)},
            unk_token=unknown,
            byte_fallback=True,
            fuse_unk=True,
            merges=merges_from_scores(tokens, fields["tokenizer.ggml.scores"], types),
        )
    )
    tok.normalizer = normalizers.Replace(" ", "▁")
    tok.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    whole = [
        AddedToken(t, special=kind == CONTROL, normalized=False)
        for t, kind in zip(tokens, types, strict=True)
        if kind in (CONTROL, USER_DEFINED)
    ]
    tok.add_tokens(whole)
    if fields.get("tokenizer.ggml.add_bos_token"):
        begin = tokens[fields["tokenizer.ggml.bos_token_id"]]
        tok.post_processor = processors.TemplateProcessing(
            single=f"{begin} $A",
            pair=f"{begin} $A {begin} $B:1",
            special_tokens=[(begin, fields["tokenizer.ggml.bos_token_id"])],
        )
    return tok


def merges_from_scores(tokens: list[str], scores: list[float], types: list[int]) -> list[tuple[str, str]]:
    """Every way to split a normal piece into two normal pieces, best score of the joined piece first; ways to split
    one piece are ordered by the longer left part, as transformers orders them."""
    score = {t: s for t, s, kind in zip(tokens, scores, types, strict=True) if kind == NORMAL}
    cuts = sorted(
        (-s, -cut, piece)
        for piece, s in score.items()
        for cut in range(1, len(piece))
        if piece[:cut] in score and piece[cut:] in score
    )
    return [(piece[:-neg], piece[-neg:]) for _, neg, piece in cuts]

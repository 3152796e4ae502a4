"""Which tokens start, end and pad a text, and the sampling defaults: merged from the three files that may say so."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from plow.checkpoint.jsonfile import read_json
from plow.errors import CheckpointError

SAMPLING = ("do_sample", "temperature", "top_k", "top_p", "min_p", "repetition_penalty")


@dataclass(frozen=True)
class GenerationConfig:
    """eos_token_ids: union of config.json, generation_config.json and the tokenizer's eos_token, in that order: a
    chat model often ends a turn with a token that only one of them names. sources: what each file said.
    sampling: the defaults that generation_config.json gives (any of `SAMPLING`)."""

    eos_token_ids: tuple[int, ...] = ()
    bos_token_id: int | None = None
    pad_token_id: int | None = None
    sampling: dict[str, Any] = field(default_factory=dict)
    sources: dict[str, tuple[int, ...]] = field(default_factory=dict)


def load_generation(path: Path, config: dict[str, Any], token_id: Any) -> GenerationConfig:
    """path: the checkpoint directory; config: its config.json; token_id(text) -> id or None (the tokenizer's view).

    Raises CheckpointError when an id is no integer or lies outside the vocabulary of config.json.
    """
    generation = read_json(path / "generation_config.json", optional=True)
    tokenizer = read_json(path / "tokenizer_config.json", optional=True)
    eos_text = _text(tokenizer.get("eos_token"))
    eos_id = token_id(eos_text) if eos_text is not None else None
    vocab = config.get("vocab_size")
    sources = {
        "config.json": _ids(config.get("eos_token_id"), "config.json", vocab),
        "generation_config.json": _ids(generation.get("eos_token_id"), "generation_config.json", vocab),
        "tokenizer_config.json": () if eos_id is None else (eos_id,),
    }
    eos = tuple(dict.fromkeys(i for ids in sources.values() for i in ids))

    def first(key: str) -> int | None:
        ids = _ids(generation.get(key), "generation_config.json", vocab) or _ids(config.get(key), "config.json", vocab)
        return ids[0] if ids else None

    sampling = {k: generation[k] for k in SAMPLING if generation.get(k) is not None}
    return GenerationConfig(eos, first("bos_token_id"), first("pad_token_id"), sampling, sources)


def _text(token: Any) -> str | None:
    """A special token is a string or an AddedToken object {"content": ...}."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else None


def _ids(value: Any, file: str, vocab_size: Any) -> tuple[int, ...]:
    ids = value if isinstance(value, list) else [] if value is None else [value]
    for i in ids:
        if not isinstance(i, int) or isinstance(i, bool) or i < -1 or (isinstance(vocab_size, int) and i >= vocab_size):
            raise CheckpointError(f"token id {i!r} is outside the vocabulary of {vocab_size}", file, "correct the file")
    return tuple(i for i in ids if i >= 0)  # -1 is an old spelling of "none"

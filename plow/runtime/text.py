"""Text in, tokens out, text back: the tokenizer, incremental decoding and stop strings."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as RustTokenizer
from tokenizers.decoders import DecodeStream

from plow.errors import BundleError
from plow.runtime.chat import ChatTemplate

COPY_AGAIN = "copy it from the model's source again"
CONTEXT_IDS = 8
"""Prompt tokens that a text stream starts from, so that the first token keeps its leading space."""


REPLACEMENT = "\ufffd"


def _byte_alphabet() -> dict[str, int]:
    """Character -> byte of byte-level BPE (GPT-2): printable Latin-1 stands for itself, the rest for 256, 257, ..."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = [b for b in range(256) if b not in printable]
    return {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(hidden)}


_BYTE_OF = _byte_alphabet()


class Tokenizer:
    """Tokenizer files of a bundle or checkpoint directory. Raises BundleError when they are missing or damaged."""

    def __init__(self, path: Path) -> None:
        self.path = path
        file = path / "tokenizer.json"
        if not file.is_file():
            raise BundleError("there is no tokenizer.json", str(path),
                              "give prompts as token ids, or add it to the checkpoint and compile again")
        try:
            self._rust = RustTokenizer.from_file(str(file))
        except Exception as e:  # the Rust binding raises bare Exception
            raise BundleError(f"cannot read the tokenizer: {e}", str(file), COPY_AGAIN) from e
        self._rust.no_truncation()
        self._rust.no_padding()
        self.config = _read_json(path / "tokenizer_config.json")

    @cached_property
    def chat(self) -> ChatTemplate | None:
        """The chat template, None if the model has none."""
        jinja = self.path / "chat_template.jinja"
        source = jinja.read_text() if jinja.is_file() else self.config.get("chat_template")
        if isinstance(source, list):  # named templates
            source = {t["name"]: t["template"] for t in source}.get("default")
        return ChatTemplate(source, self.special_tokens) if source else None

    @property
    def special_tokens(self) -> dict[str, str]:
        """bos_token, eos_token, ... as text."""
        found = {}
        for key, value in self.config.items():
            text = value.get("content") if isinstance(value, dict) else value
            if key.endswith("_token") and isinstance(text, str):
                found[key] = text
        return found

    @property
    def vocab_size(self) -> int:
        return self._rust.get_vocab_size(with_added_tokens=True)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids. A BOS that the text already starts with is not doubled by the tokenizer's own."""
        ids = self._rust.encode(text, add_special_tokens=add_special_tokens).ids
        bos = self._rust.token_to_id(self.special_tokens.get("bos_token", ""))
        if add_special_tokens and bos is not None and ids[:2] == [bos, bos]:
            plain = self._rust.encode(text, add_special_tokens=False).ids
            return ids[1:] if plain[:1] == [bos] and plain[:2] != [bos, bos] else ids
        return ids

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        return self._rust.decode(list(ids), skip_special_tokens=skip_special_tokens)

    def token_text(self, token: int) -> str:
        """One token by itself; bytes of a split character in OpenAI's spelling, bytes:\\xe2\\x80."""
        text = self._rust.decode([token], skip_special_tokens=False)
        return text if REPLACEMENT not in text else "bytes:" + "".join(f"\\x{b:02x}" for b in self.token_bytes(token))

    def token_bytes(self, token: int) -> bytes:
        """UTF-8 bytes of one token, which need not be whole characters."""
        text = self._rust.decode([token], skip_special_tokens=False)
        piece = self._rust.id_to_token(token) or ""
        if REPLACEMENT not in text:
            return text.encode()
        if len(piece) == 6 and piece.startswith("<0x"):  # byte fallback of SentencePiece
            return bytes([int(piece[3:5], 16)])
        if all(c in _BYTE_OF for c in piece):
            return bytes(_BYTE_OF[c] for c in piece)
        return text.encode()

    def stream(self, prompt: Sequence[int], stop: Sequence[str] = ()) -> TextStream:
        return TextStream(self._rust, list(prompt)[-CONTEXT_IDS:], stop)


class TextStream:
    """Text of a growing answer. `push` gives what may be shown: never half a character, never part of a stop string.

    The concatenation of all pieces, `finish` included, is the same text whether or not anybody streams.
    """

    def __init__(self, rust: RustTokenizer, context: list[int], stop: Sequence[str] = ()) -> None:
        self._rust, self._context = rust, context
        self._stream = DecodeStream(ids=context, skip_special_tokens=True)
        self._ids: list[int] = []
        self._decoded = 0
        """Characters that the decoder has given."""
        self._held = ""
        """Decoded text that may be the beginning of a stop string."""
        self._stop = [s for s in stop if s]
        self.stopped = False

    def push(self, token: int) -> str:
        if self.stopped:
            return ""
        self._ids.append(token)
        text = self._stream.step(self._rust, token) or ""
        self._decoded += len(text)
        return self._filter(text)

    def finish(self) -> str:
        """The rest: bytes of a cut-off character (as U+FFFD) and text held back for a stop string."""
        if self.stopped:
            return ""
        head = self._rust.decode(self._context, skip_special_tokens=True)
        whole = self._rust.decode(self._context + self._ids, skip_special_tokens=True)
        rest = whole[len(head) + self._decoded:]
        self._decoded += len(rest)
        text = self._filter(rest)
        if not self.stopped:
            text, self._held = text + self._held, ""
        return text

    def _filter(self, text: str) -> str:
        """Cut at the first stop string; hold back a tail that could become one."""
        buffer = self._held + text
        hits = [i for s in self._stop if (i := buffer.find(s)) >= 0]
        if hits:
            self.stopped, self._held = True, ""
            return buffer[:min(hits)]
        keep = max((n for s in self._stop for n in range(1, len(s)) if buffer.endswith(s[:n])), default=0)
        self._held = buffer[len(buffer) - keep:]
        return buffer[:len(buffer) - keep]


def _read_json(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        data = json.loads(file.read_text())
    except ValueError as e:
        raise BundleError(f"no valid JSON: {e}", str(file), COPY_AGAIN) from None
    if not isinstance(data, dict):
        raise BundleError("is no JSON object", str(file), COPY_AGAIN)
    return data

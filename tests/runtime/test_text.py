"""Tokens become text piece by piece, and the pieces are the text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer as RustTokenizer
from tokenizers import decoders, models, pre_tokenizers, processors

from plow.errors import BundleError
from plow.oracle import tiny
from plow.runtime.text import Tokenizer

TEXTS = ["the answer", "naïve café", "日本語テキスト", "🎉 👩‍👩‍👧 ok", " leading", "tail ", "a\n\nb", "<|im_end|>x"]


@pytest.fixture(scope="module")
def tok(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    path = tmp_path_factory.mktemp("tok")
    tiny.tokenizer().save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(
        json.dumps({"bos_token": "<bos>", "eos_token": {"content": "<|im_end|>"}})
    )
    return Tokenizer(path)


@pytest.mark.parametrize("text", TEXTS)
def test_streamed_text_equals_decoded_text_and_no_piece_is_half_a_character(tok: Tokenizer, text: str) -> None:
    ids = tok.encode(text, add_special_tokens=False)
    stream = tok.stream(tok.encode("what: "))
    pieces = [stream.push(i) for i in ids]
    assert "".join(pieces) + stream.finish() == tok.decode(ids)
    assert not any("\ufffd" in p for p in pieces)


@pytest.mark.parametrize("text", TEXTS)
def test_text_cut_off_anywhere_equals_decoded_text(tok: Tokenizer, text: str) -> None:
    ids = tok.encode(text, add_special_tokens=False)
    for n in range(len(ids) + 1):
        stream = tok.stream(tok.encode("one"))
        assert "".join(stream.push(i) for i in ids[:n]) + stream.finish() == tok.decode(ids[:n])
        assert stream.finish() == "", "finish gives the rest once"


def feed(tok: Tokenizer, text: str, stop: list[str]) -> tuple[list[str], bool]:
    stream = tok.stream([], stop)
    pieces = [stream.push(i) for i in tok.encode(text, add_special_tokens=False)]
    return [*pieces, stream.finish()], stream.stopped


@pytest.mark.parametrize(
    ("text", "stop", "want"),
    [
        ("one two three", ["two"], "one "),
        ("one twx three", ["two"], None),
        ("aaab", ["aab"], "a"),
        ("xEND", ["END"], "x"),
        ("hello world", ["o w", "lo"], "hel"),
        ("stop日本語x", ["本語"], "stop日"),
        ("ab", ["abc"], None),
        ("abab", ["abx"], None),
        ("ENDx", ["END"], ""),
        ("one\n\ntwo", ["\n\n"], "one"),
    ],
)
def test_a_stop_string_ends_the_text_even_across_tokens(
    tok: Tokenizer, text: str, stop: list[str], want: str | None
) -> None:
    pieces, stopped = feed(tok, text, stop)
    assert "".join(pieces) == (text if want is None else want)
    assert stopped == (want is not None)


def test_a_piece_never_shows_the_beginning_of_a_stop_string(tok: Tokenizer) -> None:
    stream = tok.stream([], ["<END>"])
    shown = ""
    for i in tok.encode("ab <EN <END> tail", add_special_tokens=False):
        shown += stream.push(i)
        assert "<END" not in shown
    assert shown == "ab <EN " and stream.stopped and stream.finish() == ""


def test_the_first_token_keeps_its_leading_space(tmp_path: Path) -> None:
    """Metaspace decoders strip the first space of a text; an answer is not the beginning of one."""
    vocab = {"<unk>": 0, "▁Say": 1, "▁hello": 2, "▁world": 3}
    rust = RustTokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    rust.pre_tokenizer, rust.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    rust.save(str(tmp_path / "tokenizer.json"))
    stream = Tokenizer(tmp_path).stream([1])
    assert stream.push(2) + stream.push(3) + stream.finish() == " hello world"


def test_a_bos_in_the_text_is_not_doubled(tmp_path: Path) -> None:
    rust = tiny.tokenizer()
    rust.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 1)])
    rust.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text('{"bos_token": "<bos>"}')
    tok = Tokenizer(tmp_path)
    plain = tok.encode("hello", add_special_tokens=False)
    assert tok.encode("hello") == [1, *plain]
    assert tok.encode("<bos>hello") == [1, *plain]
    assert tok.encode("<bos><bos>hello") == [1, 1, 1, *plain], "somebody who writes two means it"


def test_missing_or_damaged_tokenizer_files_are_typed_errors(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"no tokenizer\.json"):
        Tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(BundleError, match="cannot read the tokenizer"):
        Tokenizer(tmp_path)
    tiny.tokenizer().save(str(tmp_path / "tokenizer.json"))
    for text, what in (("{", "no valid JSON"), ("[]", "no JSON object")):
        (tmp_path / "tokenizer_config.json").write_text(text)
        with pytest.raises(BundleError, match=what):
            Tokenizer(tmp_path)


def test_the_template_file_wins_over_the_config_and_named_templates_use_the_default(tmp_path: Path) -> None:
    tiny.tokenizer().save(str(tmp_path / "tokenizer.json"))
    config = tmp_path / "tokenizer_config.json"
    assert Tokenizer(tmp_path).chat is None
    config.write_text(
        json.dumps({"chat_template": [{"name": "rag", "template": "r"}, {"name": "default", "template": "d"}]})
    )
    assert Tokenizer(tmp_path).chat.render([{"role": "user", "content": "x"}]) == "d"
    (tmp_path / "chat_template.jinja").write_text("file")
    assert Tokenizer(tmp_path).chat.render([{"role": "user", "content": "x"}]) == "file"


def test_the_bytes_of_split_characters_are_told_apart(tok: Tokenizer) -> None:
    ids = tok.encode("語é", add_special_tokens=False)
    assert b"".join(tok.token_bytes(i) for i in ids) == "語é".encode()
    assert [tok.token_text(i) for i in ids] == [f"bytes:\\x{b:02x}" for b in "語é".encode()]
    assert tok.token_text(tok.encode("the")[0]) == "the" and tok.token_bytes(2) == b"<|im_end|>"

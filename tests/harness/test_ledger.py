"""The ledger keeps every line, or says which one it lost."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness import ledger
from harness.errors import Contended, LedgerError
from harness.ledger import GENESIS, Ledger, Line, make_line

Lines = list[bytes]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with Ledger(tmp_path / "ledger.jsonl") as book:
        for n in range(4):
            book.append("note", {"n": n, "text": "größer"})
    return tmp_path / "ledger.jsonl"


def test_lines_read_back_as_written_and_chain_from_genesis(path: Path) -> None:
    lines = ledger.read(path)
    assert [line.data["n"] for line in lines] == [0, 1, 2, 3]
    assert [line.prev for line in lines] == [GENESIS, *(line.hash for line in lines[:-1])]


def test_reopening_appends_and_changes_nothing_before(path: Path) -> None:
    before = path.read_bytes()
    with Ledger(path) as book:
        book.append("note", {"n": 4})
    assert path.read_bytes().startswith(before) and len(ledger.read(path)) == 5


@pytest.mark.parametrize("keep", [1, 40, -1])
def test_a_torn_last_line_is_cut_and_the_repair_is_recorded(path: Path, keep: int) -> None:
    whole = path.read_bytes()
    torn = make_line(4, ledger.read(path)[-1].hash, "note", "t", {"n": 4}).encode()[:keep]
    path.write_bytes(whole + torn)
    assert len(ledger.read(path)) == 4, "a reader ignores the torn tail"
    with Ledger(path) as book:
        assert book.lines[-1].kind == "repair" and book.lines[-1].data["cut_bytes"] == len(torn)
    assert path.read_bytes().startswith(whole) and len(ledger.read(path)) == 5


DAMAGE = {
    "edited value": (lambda x: [x[0], x[1].replace(b'"n":1', b'"n":7'), *x[2:]], 2, "hash does not match"),
    "edited spacing": (lambda x: [x[0], x[1].replace(b'"n":1', b'"n": 1'), *x[2:]], 2, "hash does not match"),
    "line removed": (lambda x: [x[0], *x[2:]], 2, "removed, repeated or reordered"),
    "line repeated": (lambda x: [x[0], x[0], *x[1:]], 2, "removed, repeated or reordered"),
    "lines swapped": (lambda x: [x[0], x[2], x[1], x[3]], 2, "removed, repeated or reordered"),
    "first line removed": (lambda x: x[1:], 1, "removed, repeated or reordered"),
    "forged chain": (lambda x: [*x[:3], make_line(3, GENESIS, "note", "t", {}).encode()], 4, "does not chain"),
    "not JSON": (lambda x: [x[0], b"{oops\n", *x[2:]], 2, "is not JSON"),
    "blank line": (lambda x: [x[0], b"\n", *x[1:]], 2, "is not JSON"),
    "extra field": (lambda x: [x[0][:-2] + b',"more":1}\n', *x[1:]], 1, "fields"),
    "zeros after a power cut": (lambda x: [*x[:3], b"\0" * 64 + b"\n"], 4, "is not JSON"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_an_error_that_names_the_line(path: Path, name: str) -> None:
    change, number, words = DAMAGE[name]
    path.write_bytes(b"".join(change(path.read_bytes().splitlines(keepends=True))))
    for opening in (ledger.read, Ledger):
        with pytest.raises(LedgerError, match=words) as error:
            opening(path)
        assert error.value.where.endswith(f":{number}")


def test_a_missing_ledger_says_how_to_start(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="plow-bringup new"):
        ledger.read(tmp_path / "ledger.jsonl")


def test_a_full_disk_leaves_whole_lines_only(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, real = path.read_bytes(), os.pwrite

    def full(fd: int, raw: bytes, at: int) -> int:
        real(fd, raw[:10], at)
        raise OSError(errno.ENOSPC, "No space left on device")

    with Ledger(path) as book:
        monkeypatch.setattr(os, "pwrite", full)
        with pytest.raises(LedgerError, match="No space left"):
            book.append("note", {})
        assert path.read_bytes() == before
        monkeypatch.setattr(os, "pwrite", real)
        book.append("note", {"n": 4})
    assert len(ledger.read(path)) == 5


def test_a_short_write_is_continued(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pwrite
    with Ledger(path) as book:
        monkeypatch.setattr(os, "pwrite", lambda fd, raw, at: real(fd, bytes(raw)[:7], at))
        book.append("note", {"n": 4})
    assert len(ledger.read(path)) == 5


def test_a_second_writer_is_turned_away_and_told_who_holds_it(path: Path) -> None:
    code = "import sys; from pathlib import Path; from harness.ledger import Ledger; Ledger(Path(sys.argv[1]))"
    with Ledger(path), pytest.raises(Contended, match=str(os.getpid())) as error:
        Ledger(path)
    assert error.value.exit_code == 76
    subprocess.run([sys.executable, "-c", code, str(path)], check=True)  # it died without closing; the lock is free
    with Ledger(path):
        assert len(ledger.read(path)) == 4


def test_the_digest_is_of_the_canonical_form() -> None:
    line = make_line(0, GENESIS, "note", "t", {"b": 1, "a": "ä"})
    assert (
        line.encode()
        == (
            f'{{"data":{{"a":"ä","b":1}},"hash":"{line.hash}","kind":"note","prev":"{GENESIS}","seq":0,"time":"t"}}\n'
        ).encode()
    )
    assert line == Line(0, GENESIS, "note", "t", {"a": "ä", "b": 1}, line.hash)
    with pytest.raises(ValueError, match="JSON"):
        make_line(0, GENESIS, "note", "t", {"x": float("nan")})

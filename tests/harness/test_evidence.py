"""Evidence is stored whole, under the digest of its bytes, or not at all."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from harness import evidence
from harness.errors import EvidenceError

DOCUMENT = {"schema": evidence.SCHEMA, "stage": 1, "checks": [{"name": "error", "measured": 0.1}]}


def test_a_document_reads_back_and_its_name_is_its_digest(tmp_path: Path) -> None:
    digest = evidence.put(tmp_path / "evidence", DOCUMENT)
    assert evidence.get(tmp_path / "evidence", digest) == DOCUMENT
    assert hashlib.sha256((tmp_path / "evidence" / f"{digest}.json").read_bytes()).hexdigest() == digest
    assert evidence.put(tmp_path / "evidence", dict(reversed(DOCUMENT.items()))) == digest


def test_an_edited_document_is_refused(tmp_path: Path) -> None:
    digest = evidence.put(tmp_path, DOCUMENT)
    path = tmp_path / f"{digest}.json"
    path.write_text(path.read_text().replace("0.1", "0.0"))
    with pytest.raises(EvidenceError, match="edited"):
        evidence.get(tmp_path, digest)


def test_a_missing_document_and_another_schema_are_refused(tmp_path: Path) -> None:
    with pytest.raises(EvidenceError, match="missing"):
        evidence.get(tmp_path, "0" * 64)
    digest = evidence.put(tmp_path, {"schema": "other/1"})
    with pytest.raises(EvidenceError, match="schema 'other/1'"):
        evidence.get(tmp_path, digest)


def test_nan_can_not_be_stored(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON"):
        evidence.put(tmp_path, {**DOCUMENT, "x": float("nan")})
    assert list(tmp_path.iterdir()) == []


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    evidence.write_atomic(tmp_path / "a", b"old")

    def fail(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space"):
        evidence.write_atomic(tmp_path / "a", b"new")
    assert (tmp_path / "a").read_bytes() == b"old"
    with pytest.raises(EvidenceError, match="No space left"):
        evidence.put(tmp_path, DOCUMENT)

"""Evidence files: what a gate measured, stored once under the SHA-256 of its bytes."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from harness.errors import EvidenceError
from harness.ledger import canonical, fsync_dir

SCHEMA = "plow.evidence/1"


def encode(document: dict[str, Any]) -> bytes:
    """Readable (one line a check in a diff) and deterministic."""
    canonical(document)  # refuses NaN and objects JSON has no word for
    return json.dumps(document, sort_keys=True, indent=1, ensure_ascii=False, allow_nan=False).encode() + b"\n"


def write_atomic(path: Path, raw: bytes) -> None:
    """Write so that a reader sees the old file or the whole new one, also after a power cut."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temp = path.with_name(f".{path.name}.tmp")
    fd = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        view = memoryview(raw)
        while view:
            view = view[os.write(fd, view) :]
        os.fsync(fd)
    finally:
        os.close(fd)
    os.rename(temp, path)
    fsync_dir(path.parent)


def put(folder: Path, document: dict[str, Any]) -> str:
    """Store a document; returns its digest. Storing the same one again changes nothing."""
    raw = encode(document)
    digest = hashlib.sha256(raw).hexdigest()
    try:
        write_atomic(folder / f"{digest}.json", raw)
    except OSError as e:
        raise EvidenceError(
            f"cannot store evidence: {e.strerror}", str(folder), "free disk space or fix the rights"
        ) from e
    return digest


def get(folder: Path, digest: str) -> dict[str, Any]:
    """The document named `digest`. Raises EvidenceError when it is missing or its bytes have another digest."""
    path = folder / f"{digest}.json"
    try:
        raw = path.read_bytes()
    except OSError:
        raise EvidenceError(
            "evidence file is missing", str(path), "restore it from git, or judge the stage again"
        ) from None
    if hashlib.sha256(raw).hexdigest() != digest:
        raise EvidenceError("evidence file was edited", str(path), "restore it from git, or judge the stage again")
    document = json.loads(raw)
    if document.get("schema") != SCHEMA:
        raise EvidenceError(f"not evidence: schema {document.get('schema')!r}", str(path), f"expected {SCHEMA}")
    return document

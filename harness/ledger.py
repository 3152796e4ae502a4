"""Append-only, hash-chained JSON lines: the only memory of a bring-up.

    {"data": {...}, "hash": H, "kind": "...", "prev": H of the line before, "seq": n, "time": UTC}

H is the SHA-256 of the line's canonical JSON without `hash`; the first `prev` is 64 zeros. A line counts once its
newline is on disk, so bytes after the last newline are a write that was killed: opening for append cuts them and
records a `repair` line. Every other damage is a LedgerError that names the line; nothing is guessed.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any

from harness.errors import Contended, LedgerError

GENESIS = "0" * 64
FIELDS = {"data", "hash", "kind", "prev", "seq", "time"}


@dataclass(frozen=True)
class Line:
    seq: int
    prev: str
    kind: str
    time: str
    data: dict[str, Any]
    hash: str

    def encode(self) -> bytes:
        return canonical(asdict(self)) + b"\n"


def canonical(value: Any) -> bytes:
    """The one JSON form that digests are taken of: sorted keys, no spaces, UTF-8, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def make_line(seq: int, prev: str, kind: str, time: str, data: dict[str, Any]) -> Line:
    body: dict[str, Any] = {"seq": seq, "prev": prev, "kind": kind, "time": time, "data": data}
    return Line(hash=hashlib.sha256(canonical(body)).hexdigest(), **body)


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def parse(raw: bytes, where: str = "ledger") -> tuple[list[Line], bytes]:
    """(lines, torn bytes after the last newline). Raises LedgerError naming the first damaged line."""
    whole, _, torn = raw.rpartition(b"\n")
    lines: list[Line] = []
    for number, text in enumerate(whole.split(b"\n") if whole else [], start=1):
        place = f"{where}:{number}"
        try:
            obj = json.loads(text)
        except ValueError as e:
            raise damaged("is not JSON", place) from e
        if not isinstance(obj, dict) or set(obj) != FIELDS:
            raise damaged("does not have the fields of a ledger line", place)
        if obj["seq"] != len(lines):
            raise damaged(f"has seq {obj['seq']}, expected {len(lines)} (removed, repeated or reordered)", place)
        if obj["prev"] != (lines[-1].hash if lines else GENESIS):
            raise damaged("does not chain to the line before it", place)
        line = make_line(obj["seq"], obj["prev"], obj["kind"], obj["time"], obj["data"])
        if line.hash != obj["hash"] or line.encode() != text + b"\n":
            raise damaged("was edited: its hash does not match", place)
        lines.append(line)
    return lines, torn


def damaged(how: str, place: str) -> LedgerError:
    return LedgerError(f"ledger line {how}", place, "restore the file from git; a ledger is only ever appended to")


def read(path: Path) -> list[Line]:
    """Lines on disk, without a lock and ignoring a torn tail (the writer repairs it). Raises LedgerError."""
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        raise LedgerError("no ledger", str(path), "start with: plow-bringup new ARCH --checkpoint DIR") from None
    return parse(raw, str(path))[0]


class Ledger:
    """The open ledger, held under an exclusive lock that the kernel drops when the process dies.

    on_append, if given, sees every line after it is on disk. Raises Contended if another process holds the lock,
    LedgerError for damage or when a write fails (the file is then cut back to its last whole line).
    """

    def __init__(self, path: Path, on_append: Callable[[Line], None] | None = None) -> None:
        self.path = path
        self._on_append = on_append
        path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = _lock(path.with_suffix(".lock"))
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            fsync_dir(path.parent)
            self.lines: list[Line] = []
            self._load()
        except BaseException:
            os.close(self._lock)
            raise

    def _load(self) -> None:
        raw = self.path.read_bytes()
        self.lines, torn = parse(raw, str(self.path))
        self._size = len(raw) - len(torn)
        if torn:
            os.ftruncate(self._fd, self._size)
            os.fsync(self._fd)
            self.append("repair", {"cut_bytes": len(torn), "cut_sha256": hashlib.sha256(torn).hexdigest()})

    def append(self, kind: str, data: dict[str, Any]) -> Line:
        """Write one line and fsync it; when this returns, the line survives a kill and a power cut."""
        prev = self.lines[-1].hash if self.lines else GENESIS
        line = make_line(len(self.lines), prev, kind, now(), data)
        raw = line.encode()
        try:
            _write_all(self._fd, raw, self._size)
            os.fsync(self._fd)
        except OSError as e:
            os.ftruncate(self._fd, self._size)
            raise LedgerError(
                f"cannot append: {e.strerror}", str(self.path), "free disk space or fix the file's rights"
            ) from e
        self._size += len(raw)
        self.lines.append(line)
        if self._on_append:
            self._on_append(line)
        return line

    def close(self) -> None:
        os.close(self._fd)
        os.close(self._lock)

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


def _lock(path: Path) -> int:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        holder = os.pread(fd, 32, 0).decode(errors="replace").strip() or "unknown"
        os.close(fd)
        raise Contended(
            f"process {holder} is working on this bring-up", str(path), "wait for it, or end it and `resume`"
        ) from None
    os.ftruncate(fd, 0)
    os.pwrite(fd, str(os.getpid()).encode(), 0)
    return fd


def _write_all(fd: int, raw: bytes, at: int) -> None:
    done = 0
    while done < len(raw):
        done += os.pwrite(fd, raw[done:], at + done)


def fsync_dir(path: Path) -> None:
    """Make a new or renamed directory entry durable."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)

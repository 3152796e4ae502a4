"""The tune database: one JSON line a measured choice, losers included; each line carries its own digest."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plow.errors import ConfigError

SCHEMA = "plow.tune/1"


@dataclass(frozen=True)
class Record:
    """option: what was chosen (e.g. "workers", "prefetch_bytes"); value, baseline: the two arms; target and machine:
    where it holds; shape: what was run (model digest or demand key); result: the AB; won: value replaces baseline."""

    option: str
    value: Any
    baseline: Any
    target: str
    machine: str
    shape: str
    result: dict[str, Any]
    won: bool
    date: str
    command: str

    def line(self) -> dict[str, Any]:
        data = {"schema": SCHEMA, **self.__dict__}
        return {**data, "digest": digest(data)}


def digest(data: dict[str, Any]) -> str:
    text = json.dumps({k: v for k, v in data.items() if k != "digest"}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def append(path: Path, record: Record) -> str:
    """Add a record; returns its digest."""
    path.parent.mkdir(parents=True, exist_ok=True)
    line = record.line()
    with path.open("a") as f:
        f.write(json.dumps(line, sort_keys=True) + "\n")
    return line["digest"]


def read(path: Path) -> list[dict[str, Any]]:
    """All records in order. Raises ConfigError naming a line that is damaged or was edited."""
    if not path.exists():
        raise ConfigError("no such tune database", str(path), "run stage 4, or leave --tune-db out")
    records = []
    for i, text in enumerate(path.read_text().splitlines(), 1):
        try:
            data = json.loads(text)
        except json.JSONDecodeError:
            raise ConfigError("line is no JSON", f"{path}:{i}", "remove the damaged line") from None
        if data.get("schema") != SCHEMA or data.get("digest") != digest(data):
            raise ConfigError(
                "record does not match its digest", f"{path}:{i}", "measure it again; records are never edited"
            )
        records.append(data)
    return records


def winners(path: Path, target: str, machine: str | None = None) -> dict[str, dict[str, Any]]:
    """option -> the last record that decided it for the target (and machine); a lost trial keeps its baseline."""
    found: dict[str, dict[str, Any]] = {}
    for r in read(path):
        if r["target"] == target and machine in (None, r["machine"]):
            found[r["option"]] = {
                "value": r["value"] if r["won"] else r["baseline"],
                "source": f"tune {r['digest'][:12]}",
            }
    return found

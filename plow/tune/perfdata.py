"""Measured results for people: `perf-data/*.jsonl`, one measurement a line, losers included.

A line says what was measured, on what, with which versions and by which command, so that somebody else can repeat it.
"""

from __future__ import annotations

import json
import math
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from plow.errors import ConfigError

SCHEMA = "plow.perf/1"
PACKAGES = ("plow", "numpy", "tokenizers", "torch", "transformers", "llama-cpp-python", "cupy-cuda13x")
"""Packages whose versions a record names when they are installed."""


@dataclass(frozen=True)
class PerfRecord:
    """One measurement: `value` summarises `arms[subject]`; the other arms are what it was compared with.

    subject: the arm that is judged; workload: model, batch, context, number format; arms: every raw value of every
    arm in the order measured; verdict: what the comparison allows to say; probes: state of the machine in the same
    session (read_gb_s, hop_ns ...); command: repeats the measurement from the project's root.
    """

    subject: str
    workload: str
    metric: str
    unit: str
    value: float
    arms: Mapping[str, Sequence[float]]
    method: str
    command: str
    verdict: str = ""
    notes: str = ""
    probes: Mapping[str, float] = field(default_factory=dict)
    host: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    commit: str = ""
    date: str = ""
    schema: str = SCHEMA


REQUIRED = ("subject", "workload", "metric", "unit", "method", "command", "date")
NAMES = tuple(f.name for f in fields(PerfRecord))


def cpu_name() -> str:
    """The processor's own name; on Linux from /proc/cpuinfo."""
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text(errors="replace").splitlines():
            if line.lower().startswith(("model name", "hardware", "cpu model")):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def host(accelerator: str = "") -> dict[str, Any]:
    """{"cpu", "cores" (usable by this process), "os", "accelerator"}."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "cpu": cpu_name(),
        "cores": usable,
        "os": f"{platform.system()} {platform.release()}",
        "accelerator": accelerator,
    }


def versions() -> dict[str, str]:
    """Versions of Python and of those PACKAGES that are installed."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def validate(data: Mapping[str, Any], where: str = "") -> None:
    """Raises ConfigError for an unknown schema, a missing field, an unknown field, or a number that is not finite."""
    if not isinstance(data, Mapping) or data.get("schema") != SCHEMA:
        got = data.get("schema") if isinstance(data, Mapping) else data
        raise ConfigError(f"schema {got!r} is not {SCHEMA}", where, "see perf-data/README.md")
    missing = [n for n in REQUIRED if not data.get(n)]
    missing += [n for n in ("value", "arms", "host", "versions") if data.get(n) in (None, {})]
    unknown = sorted(set(data) - set(NAMES))
    if missing or unknown:
        raise ConfigError(f"missing {missing}, unknown {unknown}", where, "see perf-data/README.md")
    if data["subject"] not in data["arms"]:
        raise ConfigError(f"no arm is named {data['subject']!r}", where, "arms holds the subject's raw values too")
    numbers = [data["value"], *(v for values in data["arms"].values() for v in values)]
    bad = [n for n in numbers if isinstance(n, bool) or not isinstance(n, (int, float)) or not math.isfinite(n)]
    if bad or not all(data["arms"].values()):
        raise ConfigError(f"not finite numbers: {bad[:3]}, or an empty arm", where, "a failed run is no measurement")


def append(path: Path, record: PerfRecord, accelerator: str = "") -> dict[str, Any]:
    """Add the record to a JSONL file, filling date (UTC), host and versions when they are empty; returns the line.

    Raises ConfigError when the record is not valid; the file is then unchanged.
    """
    data = asdict(record)
    data["date"] = record.date or datetime.now(UTC).isoformat(timespec="seconds")
    data["host"] = dict(record.host) or host(accelerator)
    data["versions"] = dict(record.versions) or versions()
    validate(data, str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as f:
        f.write(json.dumps(data, ensure_ascii=False, allow_nan=False) + "\n")
    return data


def read(path: Path) -> list[dict[str, Any]]:
    """All records of a file, validated. Raises ConfigError naming the line."""
    records = []
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        try:
            data = json.loads(line)
        except json.JSONDecodeError as e:
            raise ConfigError(f"line is no JSON: {e}", f"{path}:{number}", "one JSON object a line") from None
        validate(data, f"{path}:{number}")
        records.append(data)
    return records

"""`Machine`: the few numbers that the cost model reads, and where each of them comes from."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from plow.errors import ConfigError

SPECS = Path(__file__).parent / "specs"
SOURCES = ("measured", "datasheet", "estimated")
"""Sections of a spec, best first: a number that was measured wins over the datasheet's."""
NUMBERS = ("read_bytes_per_s", "fp32_flops", "bf16_flops", "hop_s", "packet_s")
MATMUL = ("fp32", "bf16")


@dataclass(frozen=True)
class Machine:
    """One target as the cost model sees it; all rates are of all workers together.

    workers: threads (CPU) or SMs (GPU). read_bytes_per_s: streaming read of memory. fp32_flops, bf16_flops: multiply
    and add count 2. hop_s: from a counter signal to the moment another worker has seen it. packet_s: fetch and
    dispatch of one packet. matmul: the arithmetic of projections and attention, "fp32" or "bf16". note: date, method.
    sources: number -> "measured" | "datasheet" | "estimated"; datasheet: the vendor's values, beside measured ones.
    """

    name: str
    workers: int
    read_bytes_per_s: float
    fp32_flops: float
    bf16_flops: float
    hop_s: float
    packet_s: float
    matmul: str = "fp32"
    note: str = ""
    sources: dict[str, str] = field(default_factory=dict, compare=False)
    datasheet: dict[str, float] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        where = f"machine {self.name!r}"
        for key in (*NUMBERS, "workers"):
            value = getattr(self, key)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
                raise ConfigError(f"{key} must be a positive number, is {value!r}", where)
        if self.matmul not in MATMUL:
            raise ConfigError(f"matmul must be one of {', '.join(MATMUL)}, is {self.matmul!r}", where)

    def to_json(self) -> dict[str, Any]:
        """Flat form, e.g. to be written by the tuning stage; `from_json` reads it back to an equal Machine."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Machine:
        """From a flat dict or from a spec whose numbers stand in "measured", "datasheet" and "estimated" sections.

        Raises ConfigError naming a missing, unknown or impossible field.
        """
        where = f"machine {data.get('name', '?')!r}"
        flat: dict[str, Any] = {}
        sources: dict[str, str] = {}
        for section in reversed(SOURCES):
            values = data.get(section, {})
            flat |= values
            sources |= dict.fromkeys(values, section)
        flat |= {k: v for k, v in data.items() if k not in ("measured", "estimated", "sources")}
        flat["sources"] = sources | data.get("sources", {})
        known = {f.name for f in fields(cls)}
        if unknown := sorted(flat.keys() - known):
            raise ConfigError(f"unknown field {unknown[0]!r}", where, f"known: {', '.join(sorted(known))}")
        if missing := [k for k in ("name", "workers", *NUMBERS) if k not in flat]:
            raise ConfigError(f"field {missing[0]!r} is missing", where, "state it, as 'estimated' if it is a guess")
        return cls(**flat)


def names() -> list[str]:
    """Names of the specs that come with plow."""
    return sorted(p.stem for p in SPECS.glob("*.json"))


def load(name_or_path: str | Path) -> Machine:
    """A machine by spec name ("cpu", "h200") or from a JSON file. Raises ConfigError for an unknown or damaged spec."""
    path = Path(name_or_path)
    if path.suffix != ".json":
        path = SPECS / f"{name_or_path}.json"
    if not path.is_file():
        known = ", ".join(names())
        raise ConfigError(f"no machine {str(name_or_path)!r}", str(path), f"known: {known}, or a JSON file")
    try:
        data = json.loads(path.read_text())
    except (json.JSONDecodeError, UnicodeDecodeError) as e:
        raise ConfigError(f"machine spec is no JSON: {e}", str(path)) from None
    if not isinstance(data, dict):
        raise ConfigError("machine spec must be a JSON object", str(path))
    return Machine.from_json(data)

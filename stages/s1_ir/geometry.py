"""What config.json must say: a field that is gone, senseless or changed may never pass in silence."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from plow.errors import PlowError
from plow.graph import Graph

Path = tuple[str, ...]
Build = Callable[[dict[str, Any]], Graph]
SENSELESS = (-1, "x")
"""Values that no numeric field of a decoder may have."""


@dataclass(frozen=True)
class Trial:
    """outcome: "error" (typed), "ignored" (listed with a reason), "derived" (documented, and
    right or refused by the weight check), "changed" (another graph),
    "silent" (nobody noticed) or "crash" (an untyped error)."""

    field: str
    outcome: str
    detail: str = ""

    @property
    def ok(self) -> bool:
        return self.outcome not in ("silent", "crash")

    def __str__(self) -> str:
        return f"{self.field}: {self.outcome}{f' ({self.detail})' if self.detail else ''}"


def numeric_fields(config: dict[str, Any], prefix: Path = ()) -> Iterator[Path]:
    """Paths of all numbers, nested ones too ("rope_parameters", "full_attention", "rope_theta")."""
    for key, value in config.items():
        if isinstance(value, dict):
            yield from numeric_fields(value, (*prefix, key))
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield (*prefix, key)


def unaccounted(config: dict[str, Any], graph: Graph) -> list[str]:
    """Fields that the family neither consumed nor ignored with a reason."""
    ignored = {k for k, why in graph.meta["ignored_fields"].items() if why.strip()}
    return sorted(set(config) - set(graph.meta["consumed_fields"]) - ignored)


def missing_fields(config: dict[str, Any], graph: Graph, build: Build) -> list[Trial]:
    """Each numeric field dropped in turn."""
    return [_trial(config, graph, build, path, None) for path in numeric_fields(config)]


def senseless_fields(config: dict[str, Any], graph: Graph, build: Build) -> list[Trial]:
    return [_trial(config, graph, build, path, value) for path in numeric_fields(config) for value in SENSELESS]


def changed_fields(config: dict[str, Any], graph: Graph, build: Build) -> list[Trial]:
    """Each numeric field doubled and each switch flipped: a consumed field must lead to another graph or an error."""
    trials = [_trial(config, graph, build, path, 2 * _at(config, path)) for path in numeric_fields(config)]
    return trials + [_trial(config, graph, build, (k,), not v) for k, v in config.items() if isinstance(v, bool)]


def _trial(config: dict[str, Any], graph: Graph, build: Build, path: Path, value: Any) -> Trial:
    """value None drops the field."""
    name = ".".join(path) + ("" if value is None else f" = {value!r}")
    if path[0] in graph.meta["ignored_fields"]:
        return Trial(name, "ignored", graph.meta["ignored_fields"][path[0]])
    changed = copy.deepcopy(config)
    holder = _at(changed, path[:-1])
    if value is None:
        del holder[path[-1]]
    else:
        holder[path[-1]] = value
    try:
        other = build(changed)
    except PlowError as e:
        return Trial(name, "error", e.what)
    except (TypeError, ValueError, KeyError, AttributeError, ArithmeticError, AssertionError, IndexError) as e:
        return Trial(name, "crash", f"{type(e).__name__}: {e}")
    if value is None and path[0] in other.meta["derived_fields"]:
        if fingerprint(other) == fingerprint(graph):
            return Trial(name, "derived", "to the same value")
        if other.weights != graph.weights:
            return Trial(name, "derived", "to a value that the weight check refuses")
    if value is not None and fingerprint(other) != fingerprint(graph):
        return Trial(name, "changed")
    return Trial(name, "silent")


def _at(config: dict[str, Any], path: Path) -> Any:
    for key in path:
        config = config[key]
    return config


def fingerprint(graph: Graph) -> str:
    """All that later rooms see of a graph, except the report on its config fields."""
    meta = {k: v for k, v in sorted(graph.meta.items()) if not k.endswith("_fields")}
    return f"{graph}\n{sorted(graph.weights.items())}\n{meta}"

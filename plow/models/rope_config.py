"""RoPE as configs write it, old and new, reduced to theta and scaling.

Old style: `rope_theta` and `rope_scaling` (null, or a dict whose kind is called `type` or `rope_type`).
New style (transformers 5): `rope_parameters`, one dict that holds everything, or one such dict per layer type.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from plow.errors import ConfigError

WHERE = "config.json"
KEYS: dict[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
}
"""rope_type -> the parameters it needs; it may have no other."""


@dataclass(frozen=True)
class Rope:
    """theta: base; scaling: {} for the default type, else {"rope_type": kind, ...} with the keys of `KEYS`."""

    theta: float
    scaling: dict[str, Any] = field(default_factory=dict)


def read_rope(parameters: dict[str, Any] | None, theta: float | None, name: str) -> Rope:
    """parameters: a rope_scaling or rope_parameters dict; theta: the value beside it, used when the dict has none.

    Raises ConfigError when theta is missing or given twice with different values, when the kind is unsupported or
    spelled in two ways that disagree, or when a parameter is missing, unknown or no positive number.
    """
    p = dict(parameters or {})
    kinds = {p.pop(k) for k in ("rope_type", "type") if k in p}
    if len(kinds) > 1:
        raise ConfigError(
            f"{name}: rope_type and type disagree: {sorted(map(str, kinds))}", WHERE, "keep rope_type only"
        )
    kind = kinds.pop() if kinds else "default"
    if kind not in KEYS:
        raise ConfigError(f"{name}: rope_type {kind!r} is not supported", WHERE, f"supported: {', '.join(KEYS)}")
    inner = p.pop("rope_theta", None)
    if inner is not None and theta is not None and inner != theta:
        raise ConfigError(f"{name}: rope_theta is {inner} inside and {theta} outside", WHERE, "keep one of them")
    theta = inner if inner is not None else theta
    if theta is None:
        raise ConfigError(
            "field 'rope_theta' is missing", WHERE, "add it (transformers assumes 10000.0 for old Llama configs)"
        )
    if p.get("partial_rotary_factor") in (1, 1.0):
        p.pop("partial_rotary_factor")
    for key in p:
        if key not in KEYS[kind]:
            raise ConfigError(
                f"{name}: {kind!r} takes no parameter {key!r}", WHERE, f"it takes: {', '.join(KEYS[kind]) or 'none'}"
            )
    for key in KEYS[kind]:
        if key not in p:
            raise ConfigError(f"{name}: field {key!r} is missing", WHERE, f"{kind!r} needs {', '.join(KEYS[kind])}")
    for key, value in {"rope_theta": theta, **p}.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
            raise ConfigError(f"{name}: {key} = {value!r} is no positive number", WHERE, "correct the field")
    return Rope(float(theta), {} if kind == "default" else {"rope_type": kind, **p})


def single_rope(
    rope_theta: float | None, rope_scaling: dict[str, Any] | None, rope_parameters: dict[str, Any] | None
) -> Rope:
    """The one RoPE of a model whose layers all rotate alike. Raises ConfigError as `read_rope`, and when both dicts
    are given and differ."""
    if rope_scaling and rope_parameters and rope_scaling != rope_parameters:
        raise ConfigError(
            "rope_scaling and rope_parameters are both given and differ", WHERE, "keep rope_parameters only"
        )
    if rope_parameters:
        return read_rope(rope_parameters, rope_theta, "rope_parameters")
    return read_rope(rope_scaling, rope_theta, "rope_scaling")

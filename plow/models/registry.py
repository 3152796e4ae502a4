"""model_type -> family."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Any

from plow.errors import UnsupportedArchitecture
from plow.graph import Graph
from plow.models.gemma3 import build_gemma3
from plow.models.llama import build_llama, build_mistral
from plow.models.qwen3 import build_qwen3

FAMILIES: dict[str, Callable[[dict[str, Any]], Graph]] = {
    "llama": build_llama,
    "mistral": build_mistral,
    "gemma3_text": build_gemma3,
    "qwen3": build_qwen3,
}
"""`model_type` of config.json -> builder."""


def build(config: dict[str, Any]) -> Graph:
    """The verified graph of a checkpoint's config.json, in base operators.

    Raises UnsupportedArchitecture (with the known model types and the closest one) and ConfigError.
    """
    model_type = config.get("model_type")
    if not isinstance(model_type, str):
        raise UnsupportedArchitecture(f"model_type is {model_type!r}", "config.json", f"known: {', '.join(FAMILIES)}")
    if model_type not in FAMILIES:
        near = difflib.get_close_matches(model_type, FAMILIES, 1, 0.4)
        hint = f"; closest: {near[0]}" if near else ""
        raise UnsupportedArchitecture(
            f"model_type {model_type!r} is not supported", "config.json", f"known: {', '.join(FAMILIES)}{hint}"
        )
    return FAMILIES[model_type](config)

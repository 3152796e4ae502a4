"""The fusions that each family must reach on its own, by what its graph holds: a declaration, not a measurement."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from plow.graph import Graph

Test = Callable[[Graph], bool]


@dataclass(frozen=True)
class Declared:
    """op: the fused operator; rule: the rule that introduces it last; scopes: "layer" (one or more in every layer) or
    "head"; when: the families' own facts that make it possible."""

    op: str
    rule: str
    scope: str
    count: int = 1
    when: Test = lambda graph: True


def has_no_bias(graph: Graph) -> bool:
    return not any(name.endswith(".bias") for name in graph.weights)


def groups_heads(graph: Graph) -> bool:
    """The grouped projection packs heads into weight units of 32 rows: heads of another size stay apart."""
    return graph.meta["head_dim"] % 32 == 0 and has_no_bias(graph)


def separate_projections(graph: Graph) -> bool:
    return graph.meta["head_dim"] % 32 != 0 and has_no_bias(graph)


PRE_NORM = (
    Declared("qkv", "norm_qkv", "layer", when=groups_heads),
    Declared("norm_linear", "norm_linear", "layer", 3, when=separate_projections),
    Declared("norm_gated_linear", "norm_gated_linear", "layer", when=has_no_bias),
    Declared("linear_add", "linear_add", "layer", 2, when=has_no_bias),
    Declared("norm_linear", "norm_linear", "head"),
)
DECLARED: dict[str, tuple[Declared, ...]] = {
    "llama": PRE_NORM,
    "mistral": PRE_NORM,
    "gemma3_text": (
        Declared("qkv", "qkv_qk_norm", "layer", when=groups_heads),
        Declared("qkv", "norm_qkv", "layer", when=groups_heads),
        Declared("norm_gated_linear", "norm_gated_linear", "layer", when=has_no_bias),
        Declared("norm_add", "norm_add", "layer", 2),
        Declared("norm_linear", "norm_linear", "head"),
    ),
    "qwen3": (
        Declared("qkv", "qkv_qk_norm", "layer", when=groups_heads),
        Declared("norm_rope", "norm_rope", "layer", 2, when=separate_projections),
        *PRE_NORM,
    ),
}
"""Family (graph.meta["family"]) -> what its rewrite must reach. A family without an entry is red."""

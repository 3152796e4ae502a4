"""Roofline price of an operator: max(bytes / bandwidth, flops / peak) + packet + hop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from plow.errors import GraphError
from plow.graph import OPS, Graph, Node, TensorType
from plow.graph.ir import ABSENT
from plow.hw import Machine

Bind = dict[str, int]
"""{"T": rows of the step, "S": sampled rows, "C": cached positions of a sequence}; "Q": sequences (default 1)."""

MATMUL_BASE = frozenset({"linear", "attention"})
"""Base operators that run on the matrix units, and with them every fused operator that contains one."""


@dataclass(frozen=True)
class OpPrice:
    """One row of a price table. seconds = max(memory_s, compute_s) + overhead_s; bound: the largest of the three."""

    node: str
    op: str
    scope: str
    flops: float
    bytes: float
    memory_s: float
    compute_s: float
    overhead_s: float

    @property
    def seconds(self) -> float:
        return max(self.memory_s, self.compute_s) + self.overhead_s

    @property
    def bound(self) -> str:
        largest = max(self.memory_s, self.compute_s, self.overhead_s)
        if largest == self.overhead_s:
            return "overhead"
        return "memory" if largest == self.memory_s else "compute"


def peak_flops(machine: Machine, op: str) -> float:
    """FLOP/s that bounds the op: projections and attention use the machine's matmul arithmetic, the rest fp32."""
    on_matrix_units = op in MATMUL_BASE or not MATMUL_BASE.isdisjoint(OPS[op].fused)
    return machine.bf16_flops if on_matrix_units and machine.matmul == "bf16" else machine.fp32_flops


def op_price(machine: Machine, op: str, types: list[TensorType | None], attrs: dict[str, Any], bind: Bind,
             node: str = "", scope: str = "") -> OpPrice:
    """The parts of `op_seconds`. Raises GraphError for an unknown op or an unbound symbol."""
    if op not in OPS:
        raise GraphError(f"unknown op {op!r} has no price", node)
    try:
        flops, moved = OPS[op].work(types, attrs, bind)
    except KeyError as e:
        raise GraphError(f"{op}: symbol or attribute {e.args[0]!r} is not bound", node, "bind T, S and C") from None
    return OpPrice(node, op, scope, flops, moved, moved / machine.read_bytes_per_s, flops / peak_flops(machine, op),
                   machine.packet_s + machine.hop_s)


def op_seconds(machine: Machine, op: str, types: list[TensorType | None], attrs: dict[str, Any], bind: Bind) -> float:
    """Seconds of one application with all workers: max(bytes / read_bytes_per_s, flops / peak) + packet_s + hop_s.

    types: of the inputs in the op's order, None for an absent optional one.
    """
    return op_price(machine, op, types, attrs, bind).seconds


def node_types(graph: Graph, node: Node) -> list[TensorType | None]:
    return [None if v == ABSENT else graph.types[v] for v in node.inputs]


def price_table(graph: Graph, machine: Machine, bind: Bind) -> list[OpPrice]:
    """One row a node, in graph order. The graph's types must be inferred."""
    return [op_price(machine, n.op, node_types(graph, n), n.attrs, bind, n.name, n.scope) for n in graph.nodes]


def graph_seconds(graph: Graph, machine: Machine, bind: Bind) -> float:
    """Sum over the nodes: no two operators overlap in this model."""
    return sum(p.seconds for p in price_table(graph, machine, bind))

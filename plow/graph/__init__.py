"""The intermediate representation: `Graph`, `Node`, symbolic dims and ONE op table.

Belongs here: the meaning of an operator (attributes, shape rule, numpy reference semantics, FLOPs and bytes), the
IR verifier that runs after every pass, and the reference executor. Does not belong here: model names, packets,
tiles, machines.
"""

from plow.graph.ir import Graph, Node, TensorType
from plow.graph.ops import OPS, OpSpec
from plow.graph.verify import verify

__all__ = ["OPS", "Graph", "Node", "OpSpec", "TensorType", "verify"]

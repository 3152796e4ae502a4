"""The price of operators: a roofline plus the cost of a packet and of a counter hop.

Belongs here: seconds of an op, a node or a graph on a `plow.hw.Machine`. Does not belong here: FLOPs and bytes (the op
table states them beside each op), machines (`plow.hw`), and the simulation of a scheduled program.
"""

from plow.cost.price import OpPrice, graph_seconds, node_types, op_price, op_seconds, price_table

__all__ = ["OpPrice", "graph_seconds", "node_types", "op_price", "op_seconds", "price_table"]

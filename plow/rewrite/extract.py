"""Extraction: the cheapest set of e-nodes that defines all roots, each e-node paid once however often it is used.

Classes are decided from the roots down in topological order, so that all users of a class are known when its turn
comes; the rest of the cost then depends only on which later classes are needed. A dynamic program over these needed
sets is exact. It sees an acyclic class graph: in a cycle only e-nodes that go down in the order of the cheapest trees
are kept, which contains a cheapest tree of every class.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from plow.cost import op_seconds
from plow.errors import GraphError
from plow.graph import OPS, TensorType
from plow.hw import Machine
from plow.rewrite import schema
from plow.rewrite.block import Block
from plow.rewrite.egraph import ABSENT, OUT, VALUE, EGraph, ENode

FEMTO = 1e15
"""Prices are added as whole femtoseconds: exact, so that ties do not hang on the order of a sum."""
ClassType = TensorType | list[TensorType] | None


@dataclass(frozen=True)
class Extraction:
    """choice: class -> its e-node, operands before users; seconds: of all chosen; exact: proved cheapest."""

    choice: dict[int, ENode]
    seconds: float
    exact: bool
    states: int


def extract(egraph: EGraph, block: Block, price: Callable[[ENode], int], max_states: int) -> Extraction:
    """Raises GraphError when no selection defines all roots and appends to every cache at most once."""
    candidates, acyclic = _without_cycles(egraph, price)
    roots = sorted({egraph.class_of[r] for r in block.roots})
    order = list(reversed(postorder(roots, lambda c: [a for n in candidates[c] for a in n.args])))
    caches: dict[str, int] = {}
    states: dict[tuple[int, int], _State] = {(sum(1 << r for r in roots), 0): (0, 0, None)}
    exact, most = acyclic, 1
    for c in order:
        states = _decide(c, candidates[c], states, price, caches)
        most = max(most, len(states))
        if len(states) > max_states:
            states, exact = dict(heapq.nsmallest(max_states, states.items(), key=lambda s: (s[1][:2], s[0]))), False
    if not states:
        raise GraphError("no selection of operators defines the block's results", "rewrite", "report this graph")
    cost, _, chain = min(states.values(), key=lambda s: s[:2])
    choice: dict[int, ENode] = {}
    while chain is not None:
        c, node, chain = chain
        choice[c] = node
    return Extraction(choice, cost / FEMTO, exact, most)


_Chain = tuple[int, ENode, "_Chain | None"]
_State = tuple[int, int, "_Chain | None"]
"""Cost so far in fs, operators so far, and the choices. The key of a state: (needed classes, used caches) as bits."""


def _decide(c: int, nodes: list[ENode], states: dict[tuple[int, int], _State], price: Callable[[ENode], int],
            caches: dict[str, int]) -> dict[tuple[int, int], _State]:
    after: dict[tuple[int, int], _State] = {}

    def keep(key: tuple[int, int], state: _State) -> None:
        if key not in after or state[:2] < after[key][:2]:
            after[key] = state

    for (needed, used), (cost, count, chain) in states.items():
        if not needed >> c & 1:
            keep((needed, used), (cost, count, chain))
            continue
        for n in nodes:
            cache = _cache_bit(n, caches)
            if used & cache:
                continue
            below = needed & ~(1 << c)
            for a in n.args:
                below |= 1 << a
            ops = count + (n.op in OPS)
            keep((below, used | cache), (cost + price(n), ops, (c, n, chain)))
    return after


def _cache_bit(n: ENode, caches: dict[str, int]) -> int:
    """Every cache must be appended to by one operator only; 0 for an operator without one."""
    spec = OPS.get(n.op)
    if spec is None or "cache" not in spec.attrs:
        return 0
    name = str(n.attrs[list(spec.attrs).index("cache")])
    return 1 << caches.setdefault(name, len(caches))


def postorder(roots: Iterable[int], children: Callable[[int], Iterable[int]]) -> list[int]:
    """Every class that is reachable from the roots, children before parents."""
    done: dict[int, None] = {}
    for root in roots:
        stack: list[tuple[int, bool]] = [(root, False)]
        while stack:
            c, expanded = stack.pop()
            if c in done:
                continue
            if expanded:
                done[c] = None
            else:
                stack.append((c, True))
                stack += [(a, False) for a in reversed(list(children(c))) if a not in done]
    return list(done)


def _without_cycles(egraph: EGraph, price: Callable[[ENode], int]) -> tuple[dict[int, list[ENode]], bool]:
    """(class -> candidates, whether nothing that matters was left out). A value from outside beats all others."""
    leaf = {c: [n for n in nodes if n.op in (VALUE, ABSENT)] for c, nodes in egraph.classes.items()}
    candidates = {c: leaf[c] or [n for n in nodes if c not in n.args] for c, nodes in egraph.classes.items()}
    reach = dict.fromkeys(candidates, 0)
    changed = True
    while changed:
        changed = False
        for c, nodes in candidates.items():
            mask = reach[c]
            for a in (a for n in nodes for a in n.args):
                mask |= 1 << a | reach[a]
            changed |= mask != reach[c]
            reach[c] = mask
    if not any(reach[c] >> c & 1 for c in candidates):
        return candidates, True
    rank = _tree_order(candidates, price)
    kept = {c: [n for n in nodes if all(not reach[a] >> c & 1 or rank[a] < rank[c] for a in n.args)]
            for c, nodes in candidates.items()}
    return kept, False


def _tree_order(candidates: dict[int, list[ENode]], price: Callable[[ENode], int]) -> dict[int, int]:
    """Class -> position in the order in which Knuth's algorithm settles the cheapest tree of each class."""
    users: dict[int, list[tuple[int, ENode]]] = {}
    heap: list[tuple[int, int]] = []
    cost: dict[int, int] = {}
    for c, nodes in candidates.items():
        for n in nodes:
            for a in set(n.args):
                users.setdefault(a, []).append((c, n))
            if not n.args:
                heapq.heappush(heap, (price(n), c))
    while heap:
        total, c = heapq.heappop(heap)
        if c in cost:
            continue
        cost[c] = total
        for user, n in users.get(c, []):
            if user not in cost and all(a in cost for a in n.args):
                heapq.heappush(heap, (price(n) + sum(cost[a] for a in n.args), user))
    return {c: i for i, c in enumerate(cost)}


class Pricer:
    """Price in femtoseconds of an e-node, from the types of its operand classes."""

    def __init__(self, egraph: EGraph, block: Block, machine: Machine, bind: dict[str, int]) -> None:
        self.machine, self.bind = machine, bind
        self.types = class_types(egraph, block)
        self.known: dict[ENode, int] = {}

    def __call__(self, n: ENode) -> int:
        if n.op in (VALUE, ABSENT, OUT):
            return 0
        if n not in self.known:
            seconds = op_seconds(self.machine, n.op, operand_types(n, self.types), attrs(n), self.bind)
            self.known[n] = round(FEMTO * seconds)
        return self.known[n]


def attrs(n: ENode) -> dict[str, object]:
    return schema.attrs_from_key(OPS[n.op], n.attrs)


def operand_types(n: ENode, types: dict[int, ClassType]) -> list[TensorType | None]:
    found = [types[a] for a in n.args]
    if any(isinstance(t, list) for t in found):
        raise GraphError(f"{n.op} takes all results of an operator as one operand", "rewrite", "a rule misses an `out`")
    return found  # type: ignore[return-value]


def class_types(egraph: EGraph, block: Block) -> dict[int, ClassType]:
    """Types by the op table's shape rules; a class of an operator with several results has a list."""
    types: dict[int, ClassType] = {egraph.class_of[v]: t for v, t in block.types.items()}
    if egraph.absent >= 0:
        types[egraph.absent] = None
    while left := [c for c in egraph.classes if c not in types]:
        before = len(types)
        for c in left:
            for n in egraph.classes[c]:
                if all(a in types for a in n.args):
                    types[c] = _infer(n, types)
                    break
        if len(types) == before:
            raise GraphError(f"{len(left)} e-classes have no type", "rewrite", "report this graph")
    return types


def _infer(n: ENode, types: dict[int, ClassType]) -> ClassType:
    if n.op == OUT:
        results = types[n.args[0]]
        if not isinstance(results, list):
            raise GraphError("a rule takes `out` of an operator with one result", "rewrite")
        return results[int(str(n.attrs[0]))]
    results = OPS[n.op].infer(operand_types(n, types), attrs(n))
    return results if len(OPS[n.op].outputs) > 1 else results[0]

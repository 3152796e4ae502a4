"""Where an e-node comes from: a replay of the recorded matches from the block's own nodes.

Every e-node is either the block's own or the right side of a match whose left side was there before. The replay finds
the shortest such derivation; it is the explanation that the report shows, and it fails if an e-node has none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from plow.errors import GraphError
from plow.graph import OPS
from plow.rewrite import schema
from plow.rewrite.block import Block
from plow.rewrite.egraph import ABSENT, OUT, VALUE, EGraph, ENode, Match
from plow.rewrite.pattern import Absent, App, Out, Pattern, Var, applications, is_variable
from plow.rewrite.rule import Rule


@dataclass(frozen=True)
class Origin:
    """own: index of the block's node, or -1; rule and left: the match that made it and the e-nodes it matched."""

    own: int
    rule: str = ""
    left: tuple[ENode, ...] = ()


@dataclass
class Provenance:
    origins: dict[ENode, Origin]

    def chain(self, n: ENode) -> list[str]:
        """Names of the rules that lead from the block's own nodes to `n`, in order of application."""
        return list(dict.fromkeys(self._walk(n)[0]))

    def covers(self, n: ENode) -> list[int]:
        """Indices of the block's own nodes that `n` stands for."""
        return sorted(set(self._walk(n)[1]))

    def _walk(self, n: ENode) -> tuple[list[str], list[int]]:
        origin = self.origins[n]
        if origin.own >= 0:
            return [], [origin.own]
        parts = [self._walk(m) for m in origin.left]
        return [r for p in parts for r in p[0]] + [origin.rule], [i for p in parts for i in p[1]]


def replay(egraph: EGraph, block: Block, rules: Mapping[str, Rule]) -> Provenance:
    """Raises GraphError if an operator of the e-graph cannot be derived."""
    origins: dict[ENode, Origin] = {}
    for i, node in enumerate(block.nodes):
        origins.setdefault(egraph.enode(node), Origin(i))
    waiting = [_step(egraph, m, rules) for m in egraph.matches]
    while ready := [s for s in waiting if all(n in origins for n in s.needs)]:
        waiting = [s for s in waiting if s not in ready]
        for s in ready:
            for n in s.right:
                origins.setdefault(n, Origin(-1, s.rule, s.left))
    underived = [n.op for n in egraph.class_of_node if n.op not in (VALUE, ABSENT, OUT) and n not in origins]
    if underived:
        raise GraphError(f"e-node {underived[0]!r} has no derivation", "rewrite", "report this graph")
    return Provenance(origins)


@dataclass(frozen=True)
class _Step:
    """A match as e-nodes. needs: all that was matched; left: the part that the right side replaces (a pattern that
    only anchors the match is not in it)."""

    rule: str
    needs: tuple[ENode, ...]
    left: tuple[ENode, ...]
    right: tuple[ENode, ...]


def _step(egraph: EGraph, m: Match, rules: Mapping[str, Rule]) -> _Step:
    v = rules[m.rule].variants[m.variant]

    def nodes(patterns: Iterable[Pattern]) -> tuple[ENode, ...]:
        return tuple(dict.fromkeys(_enode(egraph, a, m.binding) for p in patterns for a in applications(p)))

    left = nodes(p for root, p in v.left.items() if root in v.right)
    return _Step(m.rule, nodes(v.left.values()), left, nodes(v.right.values()))


def _enode(egraph: EGraph, a: App, binding: Mapping[str, Any]) -> ENode:
    sorts = (schema.sort_of(attr) for attr in OPS[a.op].attrs.values())
    values = tuple(binding[t] if is_variable(t) else schema.decode(s, t) for t, s in zip(a.attrs, sorts, strict=True))
    return ENode(a.op, values, tuple(_class(egraph, p, binding) for p in a.args))


def _class(egraph: EGraph, p: Pattern, binding: Mapping[str, Any]) -> int:
    if isinstance(p, Var):
        return binding[p.name]
    if isinstance(p, Absent):
        return egraph.absent
    if isinstance(p, Out):
        return egraph.class_of_node[ENode(OUT, (p.index,), (_class(egraph, p.of, binding),))]
    return egraph.class_of_node[_enode(egraph, p, binding)]

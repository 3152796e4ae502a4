"""`rewrite`: scope by scope through an e-graph, extracted by price; equal scopes are solved once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from plow.cost import graph_seconds, op_seconds
from plow.errors import GraphError
from plow.graph import OPS, Graph, Node, verify
from plow.hw import Machine
from plow.rewrite.block import Block, Instance, blocks_of, program_text
from plow.rewrite.egraph import STEP, EGraph, Limits, preamble, saturate
from plow.rewrite.emit import Names, Plan, identity, instantiate, plan, topological
from plow.rewrite.extract import Extraction, Pricer, extract
from plow.rewrite.provenance import replay
from plow.rewrite.result import BlockReport, Fusion, Rewritten
from plow.rewrite.rule import Rule
from plow.rewrite.rules import RULES

Bind = dict[str, int]


@dataclass
class Solved:
    """A distinct block with its solution and the scopes that it stands for. seconds: of the block's own nodes."""

    block: Block
    seconds: list[float]
    egraph: EGraph
    extraction: Extraction
    plan: Plan
    limits: tuple[str, ...]
    instances: list[Instance]


def rewrite(graph: Graph, machine: Machine, bind: Bind, disabled: frozenset[str] = frozenset(),
            rules: Mapping[str, Rule] | None = None, limits: Limits | None = None) -> Rewritten:
    """The cheapest graph on `machine` at `bind` ({"T": rows, "S": samples, "C": context}) that the rules reach.

    disabled: names of rules to leave out; rules: instead of the registry. Same inputs, outputs, weights and caches.
    Raises GraphError for an invalid graph, an unknown rule name, or a rule that equates what cannot be equal.
    """
    active = _active(RULES if rules is None else rules, disabled)
    verify(graph)
    solved: dict[str, Solved] = {}
    for block, instance in blocks_of(graph):
        key = block.key()
        if key not in solved:
            solved[key] = _solve(block, active, machine, bind, limits or Limits())
        solved[key].instances.append(instance)
    result = _assemble(graph, list(solved.values()))
    fired = Counter(dict.fromkeys(active, 0))
    for s in solved.values():
        for m in s.egraph.matches:
            fired[m.rule] += len(s.instances)
    chosen = Counter(n.op for n in result.nodes if OPS[n.op].fused)
    return Rewritten(result, dict(fired), dict(sorted(chosen.items())), graph_seconds(graph, machine, bind),
                     graph_seconds(result, machine, bind), tuple(_report(s) for s in solved.values()),
                     _text(active, list(solved.values())))


def _active(rules: Mapping[str, Rule], disabled: frozenset[str]) -> dict[str, Rule]:
    if unknown := sorted(disabled - rules.keys()):
        raise GraphError(f"no rule is called {unknown[0]!r}", "disabled rules", f"known: {', '.join(rules)}")
    return {name: r for name, r in rules.items() if name not in disabled}


def _solve(block: Block, rules: Mapping[str, Rule], machine: Machine, bind: Bind, limits: Limits) -> Solved:
    egraph = saturate(block, rules, limits)
    price = Pricer(egraph, block, machine, bind)
    extraction = extract(egraph, block, price, limits.states)
    met = [egraph.stopped] if egraph.stopped else []
    if not extraction.exact:
        met.append(f"extraction looked at up to {extraction.states} states and is not proved cheapest")
    seconds = [_node_seconds(n, block, machine, bind) for n in block.nodes]
    if not extraction.exact and extraction.seconds > sum(seconds):
        met.append("extraction found nothing cheaper than the block as it is")
        chosen = identity(block, seconds)
    else:
        chosen = plan(block, egraph, extraction.choice, replay(egraph, block, rules), rules, price)
    return Solved(block, seconds, egraph, extraction, chosen, tuple(met), [])


def _node_seconds(n: Node, block: Block, machine: Machine, bind: Bind) -> float:
    return op_seconds(machine, n.op, [block.types[v] if v else None for v in n.inputs], n.attrs, bind)


def _assemble(graph: Graph, solved: list[Solved]) -> Graph:
    """Instances of all plans in the order of the original scopes, verified."""
    by_scope = {i.scope: (s.plan, i) for s in solved for i in s.instances}
    taken = Names(set(), {v for n in graph.nodes for v in n.outputs} | graph.inputs.keys() | graph.weights.keys())
    nodes: list[Node] = []
    aliases: dict[str, str] = {}
    for scope, _ in graph.scopes():
        emitted, renamed = instantiate(*by_scope[scope], taken)
        nodes += emitted
        aliases |= renamed
    result = Graph(dict(graph.inputs), dict(graph.weights), [_renamed(n, aliases) for n in nodes],
                   [_follow(o, aliases) for o in graph.outputs], {}, dict(graph.meta))
    result.nodes = topological(result.nodes, {*graph.inputs, *graph.weights})
    return verify(result)


def _renamed(n: Node, aliases: dict[str, str]) -> Node:
    if not aliases:
        return n
    return Node(n.name, n.op, tuple(_follow(v, aliases) for v in n.inputs), n.outputs, n.attrs, n.scope)


def _follow(value: str, aliases: dict[str, str]) -> str:
    while value in aliases:
        value = aliases[value]
    return value


def _report(s: Solved) -> BlockReport:
    first = s.instances[0]
    emitted, _ = instantiate(s.plan, first, Names(set(), set(first.names.values())))
    fusions = tuple(Fusion(node.name, node.op, p.rules, tuple(first.nodes[i].name for i in p.covers),
                           sum(s.seconds[i] for i in p.covers), p.seconds)
                    for node, p in zip(emitted, s.plan.nodes, strict=True) if p.rules)
    return BlockReport(
        scopes=tuple(i.scope for i in s.instances),
        ops_before=tuple(n.op for n in s.block.nodes), ops_after=tuple(n.op for n in s.plan.nodes),
        seconds_before=sum(s.seconds), seconds_after=sum(n.seconds for n in s.plan.nodes),
        fired=dict(Counter(m.rule for m in s.egraph.matches)), fusions=fusions,
        classes=len(s.egraph.classes), nodes=s.egraph.num_nodes, iterations=s.egraph.iterations,
        saturated=not s.egraph.stopped, proved=s.extraction.exact, limits=s.limits)


def _text(rules: Mapping[str, Rule], solved: list[Solved]) -> str:
    """One program: schema and rules, then every distinct block between push and pop."""
    parts = [preamble(rules)]
    for s in solved:
        scopes = " ".join(i.scope for i in s.instances)
        parts += [f"; scopes: {scopes}", "(push)", program_text(s.block), *[STEP] * (s.egraph.iterations + 1), "(pop)"]
    return "\n".join(parts) + "\n"

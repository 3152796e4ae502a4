"""Saturation by egglog, and the resulting e-graph as plain data with canonical class numbers."""

from __future__ import annotations

import json
import time
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

from egglog.bindings import EggSmolError
from egglog.bindings import EGraph as Engine

from plow.errors import GraphError
from plow.graph import OPS, Node
from plow.rewrite import schema
from plow.rewrite.block import Block, program_text
from plow.rewrite.rule import Rule

VALUE, ABSENT, OUT = "value", "absent", "out"
STEP = f"(run-schedule (run {schema.RULESET}))"


@dataclass(frozen=True)
class Limits:
    """A block that runs into one keeps what was found so far, and the result says so."""

    iterations: int = 16
    """Rounds of all rules."""
    nodes: int = 20_000
    """Rows of all egglog tables, looked at after every round."""
    seconds: float = 5.0
    """Wall time, looked at after every round."""
    states: int = 20_000
    """Partial solutions kept by the extraction; beyond it the cheapest survive and the result is not proved best."""


@dataclass(frozen=True, order=True)
class ENode:
    """op: of the op table, or "value" (attrs: canonical name), "absent", "out" (attrs: index). args: classes."""

    op: str
    attrs: tuple[Hashable, ...]
    args: tuple[int, ...]


@dataclass(frozen=True)
class Match:
    """A rule that fired. binding: variable -> class number, or attribute value."""

    rule: str
    variant: int
    binding: Mapping[str, Any]


@dataclass
class EGraph:
    """classes: number -> its nodes, sorted; class_of: canonical value name -> class; matches: in order of rules.

    Numbers do not depend on egglog's own: classes with a value of the block come first, in program order.
    """

    classes: dict[int, list[ENode]]
    class_of: dict[str, int]
    matches: list[Match]
    iterations: int
    stopped: str = ""
    class_of_node: dict[ENode, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.class_of_node = {n: c for c, nodes in self.classes.items() for n in nodes}

    @property
    def num_nodes(self) -> int:
        return len(self.class_of_node)

    @property
    def absent(self) -> int:
        """The class of operands that are not given; -1 where every operand is."""
        return self.class_of_node.get(ENode(ABSENT, (), ()), -1)

    def enode(self, n: Node) -> ENode:
        """The e-node of one of the block's own nodes."""
        args = tuple(self.class_of[v] if v else self.absent for v in n.inputs)
        return ENode(n.op, schema.attr_key(OPS[n.op], n.attrs), args)


def preamble(rules: Mapping[str, Rule]) -> str:
    return "\n".join([schema.schema_text(), *(r.egglog() for r in rules.values())])


def saturate(block: Block, rules: Mapping[str, Rule], limits: Limits) -> EGraph:
    """Raises GraphError if egglog refuses the program or a rule equates values with different facts."""
    engine = Engine()
    _run(engine, preamble(rules))
    _run(engine, program_text(block))
    start, iterations, stopped = time.monotonic(), 0, ""
    while _run(engine, STEP)[0].report.updated:
        iterations += 1
        size = sum(n for _, n in _run(engine, "(print-size)")[0].sizes)
        if iterations >= limits.iterations:
            stopped = f"stopped after {iterations} rounds before saturation"
        elif size > limits.nodes:
            stopped = f"stopped at {size} table rows (limit {limits.nodes}) before saturation"
        elif time.monotonic() - start > limits.seconds:
            stopped = f"stopped after {limits.seconds} s before saturation"
        if stopped:
            break
    data = engine.serialize([], max_functions=None, max_calls_per_function=None, include_temporary_functions=False)
    return _read(json.loads(data.to_json()), block, rules, iterations, stopped)


def _run(engine: Engine, text: str) -> list[Any]:
    try:
        return engine.run_program(*engine.parse_program(text))
    except EggSmolError as e:
        first = next(iter(str(e).strip().splitlines()), "no message")
        fix = "a rule is malformed, or equates values that cannot be equal"
        raise GraphError(f"egglog: {first}", "rewrite", fix) from None


_Row = tuple[str, tuple[Hashable, ...], tuple[str, ...]]
"""op, attributes, egglog's names of the operand classes."""


def _read(data: dict[str, Any], block: Block, rules: Mapping[str, Rule], iterations: int, stopped: str) -> EGraph:
    nodes, class_data = data["nodes"], data["class_data"]

    def sort(node_id: str) -> str:
        return class_data[nodes[node_id]["eclass"]]["type"]

    def column(node_id: str) -> Any:
        """An operand: egglog's class name of a term, or the literal's value."""
        s = sort(node_id)
        return nodes[node_id]["eclass"] if s == "Term" else schema.decode(s, nodes[node_id]["op"])

    terms: dict[str, list[_Row]] = {}
    tables: dict[str, list[list[Any]]] = {}
    for node_id, n in nodes.items():
        columns = [column(c) for c in n["children"]]
        if sort(node_id) == "Term":
            split = sum(sort(c) == "Term" for c in n["children"])
            terms.setdefault(n["eclass"], []).append((_op(n["op"]), tuple(columns[split:]), tuple(columns[:split])))
        elif n["children"]:
            tables.setdefault(n["op"], []).append(columns)
    named = dict(tables["named"])
    number = _number(terms, [named[v] for v in block.values()])
    classes = {number[c]: sorted((ENode(op, attrs, tuple(number[a] for a in args)) for op, attrs, args in ns), key=repr)
               for c, ns in terms.items()}
    matches = [m for rule in rules.values() for m in _matches(rule, tables, number)]
    class_of = {v: number[c] for v, c in named.items()}
    return EGraph(dict(sorted(classes.items())), class_of, matches, iterations, stopped)


def _op(name: str) -> str:
    special = {schema.VALUE: VALUE, schema.ABSENT_TERM: ABSENT, schema.OUT: OUT}
    return special.get(name) or schema.OP_OF_CONSTRUCTOR[name]


def _number(terms: dict[str, list[_Row]], first: list[str]) -> dict[str, int]:
    """egglog's class name -> number. `first` in its order, then the others by what they are made of."""
    number: dict[str, int] = {}
    for c in first:
        number.setdefault(c, len(number))
    while left := [c for c in terms if c not in number]:
        ready = []
        for c in left:
            known = [repr((op, attrs, [number[a] for a in args]))
                     for op, attrs, args in terms[c] if all(a in number for a in args)]
            if known:
                ready.append((min(known), c))
        if not ready:
            raise GraphError(f"{len(left)} e-classes hang in the air", "rewrite", "report this graph")
        for _, c in sorted(ready):
            number[c] = len(number)
    return number


def _matches(rule: Rule, tables: dict[str, list[list[Any]]], number: dict[str, int]) -> list[Match]:
    found = []
    for i, variant in enumerate(rule.variants):
        rows = []
        for row in tables.get(rule.relation(i), []):
            rows.append([number[v] if s == "Term" else v for v, s in zip(row, variant.bound.values(), strict=True)])
        found += [Match(rule.name, i, dict(zip(variant.bound, row, strict=True))) for row in sorted(rows, key=repr)]
    return found



"""A rewrite as a table: rule, matches, chosen, predicted time before and after."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plow.rewrite.result import Rewritten
from plow.rewrite.rule import Rule
from plow.rewrite.rules import RULES


def as_dict(r: Rewritten, rules: Mapping[str, Rule] | None = None) -> dict[str, Any]:
    """JSON form. A rule's `chosen` counts the emitted nodes that it had a part in; its seconds are of those nodes for
    which it was the last step, before (the nodes they cover) and after."""
    return {
        "schema": "plow.rewrite/1",
        "rules": [_rule_row(name, r, RULES if rules is None else rules) for name in r.fired],
        "chosen": r.chosen,
        "seconds_before": r.seconds_before,
        "seconds_after": r.seconds_after,
        "nodes_before": sum(len(b.ops_before) * len(b.scopes) for b in r.blocks),
        "nodes_after": len(r.graph.nodes),
        "blocks": [{
            "scopes": list(b.scopes), "ops_before": list(b.ops_before), "ops_after": list(b.ops_after),
            "seconds_before": b.seconds_before, "seconds_after": b.seconds_after,
            "fusions": [f.line() for f in b.fusions], "e_classes": b.classes, "e_nodes": b.nodes,
            "iterations": b.iterations, "saturated": b.saturated, "proved_cheapest": b.proved,
        } for b in r.blocks],
        "limits": r.limits,
    }


def _rule_row(name: str, r: Rewritten, rules: Mapping[str, Rule]) -> dict[str, Any]:
    weighted = [(f, len(b.scopes)) for b in r.blocks for f in b.fusions if name in f.rules]
    last = [(f, times) for f, times in weighted if f.rules[-1] == name]
    return {
        "rule": name, "kind": rules[name].kind, "matches": r.fired[name], "chosen": sum(times for _, times in weighted),
        "seconds_before": sum(f.seconds_before * times for f, times in last),
        "seconds_after": sum(f.seconds_after * times for f, times in last),
    }


def render(r: Rewritten, rules: Mapping[str, Rule] | None = None) -> str:
    """The table and the explanation of every distinct block as text."""
    d = as_dict(r, rules)
    head = ("rule", "kind", "matches", "chosen", "before us", "after us")
    rows = [(x["rule"], x["kind"], str(x["matches"]), str(x["chosen"]), *_us(x["seconds_before"], x["seconds_after"]))
            for x in d["rules"]]
    ops = f"{d['nodes_before']} -> {d['nodes_after']} ops"
    lines = _table([head, *rows, ("graph", "", "", ops, *_us(r.seconds_before, r.seconds_after))])
    for b in r.blocks:
        state = "saturated" if b.saturated else "not saturated"
        proof = "proved cheapest" if b.proved else "not proved cheapest"
        before, after = _us(b.seconds_before, b.seconds_after)
        lines += ["", f"{_span(b.scopes)}: {len(b.ops_before)} -> {len(b.ops_after)} ops, {before} -> {after} us "
                      f"a scope, {b.nodes} e-nodes in {b.classes} classes, {state}, {proof}"]
        lines += [f"  {f.line()}" for f in b.fusions]
    lines += [f"limit: {line}" for line in r.limits]
    return "\n".join(lines)


def _us(*seconds: float) -> tuple[str, ...]:
    return tuple(f"{s * 1e6:.2f}" for s in seconds)


def _span(scopes: tuple[str, ...]) -> str:
    return scopes[0] if len(scopes) == 1 else f"{scopes[0]} .. {scopes[-1]} ({len(scopes)} scopes)"


def _table(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    padded = [[cell.ljust(w) if i < 2 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))]
              for row in rows]
    return ["  ".join(row).rstrip() for row in padded]

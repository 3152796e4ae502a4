"""The gate of stage 2: the rewrite ends, reaches what it should, changes no result, and says what it did."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable

from plow.graph import Graph
from plow.graph.ir import ABSENT
from plow.rewrite import RULES, Rewritten
from plow.rewrite.numerics import EXACT, REASSOCIATED, differences
from stages.base import Check, GateReport, StageContext
from stages.s2_egglog import explain
from stages.s2_egglog.declared import DECLARED
from stages.s2_egglog.subject import Compiled, Subject

NUMBERED = re.compile(r"\b(layers?)\.\d+\b")
PROOF_NOT_RUN = "checkpoint A not yet certified: rule {rule} ({kind}), {count} matches"


def saturation(s: Subject, c: Compiled) -> list[Check]:
    r = c.rewritten
    unfinished = [b.scopes[0] for b in r.blocks if not (b.saturated and b.proved)]
    size = max((b.nodes for b in r.blocks), default=0)
    detail = "; ".join(r.limits) or f"{len(r.blocks)} distinct blocks, at most {size} e-nodes, all proved cheapest"
    return [s.check("blocks_unfinished", len({*unfinished, *r.limits}), detail)]


def fusions(s: Subject, c: Compiled) -> list[Check]:
    family = s.graph.meta["family"]
    if family not in DECLARED:
        return [s.check("fusions_missing", 1, f"nothing is declared for family {family!r}: add it to declared.py")]
    wanted = [d for d in DECLARED[family] if d.when(s.graph)]
    scopes = dict(c.rewritten.graph.scopes())
    missing = []
    for d in wanted:
        for scope in [x for x in scopes if x == d.scope or x.startswith(f"{d.scope}.")]:
            count = sum(n.op == d.op for n in scopes[scope])
            if count < d.count or not c.rewritten.fired.get(d.rule):
                missing.append(f"{scope}: {count} {d.op}, declared {d.count} by {d.rule}")
    detail = "; ".join(missing[:3]) or ", ".join(f"{op} {n}" for op, n in c.rewritten.chosen.items())
    return [s.check("fusions_missing", len(missing), detail)]


def conservation(s: Subject, c: Compiled) -> list[Check]:
    """Weights and caches of both graphs, and what the emitter made of the extraction."""
    before, after = _used(s.graph), _used(c.rewritten.graph)
    lost = sorted(set(before) ^ set(after))
    nodes = [n.name for n in c.rewritten.graph.nodes]
    gone = sorted((Counter(nodes) - Counter(c.emitted)).keys())
    return [
        s.check("weights_lost", len(lost), ", ".join(lost[:3]) or f"{len(before)} weights and caches"),
        s.check("nodes_not_emitted", len(gone), ", ".join(gone[:3]) or f"{len(nodes)} operators"),
    ]


def _used(graph: Graph) -> list[str]:
    """Weights that operators read, and caches that they append to."""
    weights = {v for n in graph.nodes for v in n.inputs if v in graph.weights}
    return sorted(weights | {f"cache {n.attrs['cache']}" for n in graph.nodes if "cache" in n.attrs})


def numbers(s: Subject, c: Compiled) -> list[Check]:
    """float64 on one layer of every kind with real weights, past the widest window; all layers are rewritten alike."""
    short, weights = s.truncated()
    rewritten = s.compile(short).rewritten
    try:
        found = differences(short, rewritten.graph, weights, s.seed)
    except ValueError as e:
        found = {f"a step that does not run ({e})": float("inf")}
    name = max(found, key=lambda k: found[k])
    used = {rule for b in rewritten.blocks for f in b.fusions for rule in f.rules}
    bound = EXACT if all(RULES[r].kind == "exact" for r in used if r in RULES) else REASSOCIATED
    unlike = _shapes(c.rewritten) - _shapes(rewritten)
    lost = short.outputs != rewritten.graph.outputs
    return [
        s.check(
            "numeric_error_over_bound",
            float("inf") if lost else found[name] / bound,
            f"{found[name]:.1e} at {name}, bound {bound:g}, {len(found)} values of {len(short.nodes)} operators",
        ),
        s.check("scopes_not_compared", len(unlike), "; ".join(sorted(unlike)[:1])[:200]),
    ]


def _shapes(r: Rewritten) -> set[str]:
    """Every scope as text without its number: what is computed from what, with which attributes."""
    found = set()
    for _, nodes in r.graph.scopes():
        inside = {v for n in nodes for v in n.outputs}
        known = inside | set(r.graph.weights) | set(r.graph.inputs) | {ABSENT}
        lines = [
            (n.op, [v if v in known else "before" for v in n.inputs], n.outputs, sorted(n.attrs.items())) for n in nodes
        ]
        found.add(NUMBERED.sub(r"\1.N", repr(lines)))
    return found


def price(s: Subject, c: Compiled) -> list[Check]:
    r = c.rewritten
    detail = f"{r.seconds_before * 1e3:.3f} ms -> {r.seconds_after * 1e3:.3f} ms predicted at one row"
    return [s.check("predicted_cost_ratio", r.seconds_after / r.seconds_before, detail)]


def explanation(s: Subject, c: Compiled) -> list[Check]:
    left = explain.unexplained(s.graph, c.rewritten)
    stored = explain.store(c.rewritten, s.store)
    return [
        s.check("nodes_unexplained", len(left), "; ".join(left[:3])),
        s.check("explanation_bytes", min(stored.values()), ", ".join(f"{n} {b} B" for n, b in stored.items())),
    ]


def proofs(s: Subject, c: Compiled) -> list[Check]:
    return [s.check("rules_without_proof", len(_fired(c.rewritten)), "listed as not run")]


def _fired(r: Rewritten) -> dict[str, int]:
    return {rule: n for rule, n in r.fired.items() if n}


PARTS: dict[Callable[[Subject, Compiled], list[Check]], tuple[str, ...]] = {
    saturation: ("blocks_unfinished",),
    fusions: ("fusions_missing",),
    conservation: ("weights_lost", "nodes_not_emitted"),
    numbers: ("numeric_error_over_bound", "scopes_not_compared"),
    price: ("predicted_cost_ratio",),
    explanation: ("nodes_unexplained", "explanation_bytes"),
    proofs: ("rules_without_proof",),
}
CHECKS = tuple(name for names in PARTS.values() for name in names)


def gate(ctx: StageContext) -> GateReport:
    return judge(Subject.open(ctx, ctx.artifacts))


def judge(s: Subject) -> GateReport:
    compiled, only = s.compile(s.graph), s.ctx.params.get("only")
    checks = [c for part, names in PARTS.items() if only in (None, *names) for c in part(s, compiled)]
    not_run = [
        PROOF_NOT_RUN.format(rule=rule, kind=RULES[rule].kind if rule in RULES else "unknown", count=n)
        for rule, n in _fired(compiled.rewritten).items()
    ]
    return GateReport(2, checks, not_run)

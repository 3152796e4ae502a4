"""Known-bad subjects for the gate of stage 2: a tiny model under rules, limits and emitters that are wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from plow import hw
from plow.graph import Graph
from plow.oracle import tiny
from plow.rewrite import RULES, Limits, Rewritten, Rule, fuse, rewrite
from stages.base import GateReport, Planted, StageContext
from stages.s2_egglog.gate import judge
from stages.s2_egglog.subject import Compiled, Subject, compile_graph

Compile = Callable[[Graph], Compiled]
THREE_LAYERS = tiny.LLAMA | {"num_hidden_layers": 3}
BIND = {"T": 1, "S": 1, "C": 64}


def report(ctx: StageContext, compile: Compile = compile_graph) -> GateReport:
    """The gate's own code on a tiny checkpoint."""
    path = tiny.write(ctx.workdir / "tiny", THREE_LAYERS, seed=7)
    inner = StageContext(**{**ctx.__dict__, "checkpoint": path})
    return judge(Subject.open(inner, ctx.workdir / "artifacts", compile))


def with_rules(
    rules: Mapping[str, Rule] | None = None, limits: Limits | None = None, disabled: frozenset[str] = frozenset()
) -> Compile:
    def compile(graph: Graph) -> Compiled:
        r = rewrite(graph, hw.load("cpu"), BIND, disabled, rules, limits)
        return Compiled(r, [n.name for n in r.graph.nodes])

    return compile


def changed_rule(name: str, lhs: str, rhs: str) -> Compile:
    """The registry with one rule's text replaced."""
    return with_rules({**RULES, name: replace(RULES[name], variants=(fuse(lhs, rhs),))})


def tampered(change: Callable[[Rewritten], Rewritten]) -> Compile:
    def compile(graph: Graph) -> Compiled:
        good = compile_graph(graph)
        return Compiled(change(good.rewritten), good.emitted)

    return compile


def forgets_a_layer(graph: Graph) -> Compiled:
    """An emitter of its own mind: it leaves out one operator of the extraction."""
    good = compile_graph(graph)
    return Compiled(good.rewritten, [n for n in good.emitted if not n.startswith("layer.1.attention")])


def _other_eps(r: Rewritten) -> Rewritten:
    """An extraction that lost the norms' eps."""
    nodes = [n.with_attrs(eps=1e-4) if n.op == "norm_gated_linear" else n for n in r.graph.nodes]
    return replace(r, graph=r.graph.with_nodes(nodes))


def _one_layer_only(r: Rewritten) -> Rewritten:
    """A scope that is rewritten unlike the others, and so was compared nowhere."""
    nodes = [n.with_attrs(scale=1.0) if n.op == "attention" and n.scope == "layer.2" else n for n in r.graph.nodes]
    return replace(r, graph=r.graph.with_nodes(nodes))


def _no_fusions_listed(r: Rewritten) -> Rewritten:
    return replace(r, blocks=tuple(replace(b, fusions=b.fusions[:1]) for b in r.blocks))


def _dearer(r: Rewritten) -> Rewritten:
    return replace(r, seconds_after=1.01 * r.seconds_before)


GATE_UP = "(mul (activation (linear x gate_weight)) (linear x up_weight))"
NORM_LINEAR = "(linear (rms_norm x norm_weight eps=_) weight)"
_BAD: tuple[tuple[str, Compile, str], ...] = (
    (
        "a rule that exchanges gate and up",
        changed_rule("gated_linear", GATE_UP, "(gated_linear x up_weight gate_weight)"),
        "numeric_error_over_bound",
    ),
    (
        "a rule that has an eps of its own",
        changed_rule("norm_linear", NORM_LINEAR, "(norm_linear x norm_weight weight eps=0.0001)"),
        "numeric_error_over_bound",
    ),
    ("a fused norm with another eps", tampered(_other_eps), "numeric_error_over_bound"),
    ("one layer rewritten unlike the others", tampered(_one_layer_only), "scopes_not_compared"),
    ("stopped after one round", with_rules(limits=Limits(iterations=1)), "blocks_unfinished"),
    ("a rule switched off", with_rules(disabled=frozenset({"norm_gated_linear"})), "fusions_missing"),
    ("an emitter that forgets an operator", forgets_a_layer, "nodes_not_emitted"),
    ("a fusion without an explanation", tampered(_no_fusions_listed), "nodes_unexplained"),
    ("an extraction dearer than the original", tampered(_dearer), "predicted_cost_ratio"),
)


def _planted(name: str, compile: Compile, expect: str) -> Planted:
    return Planted(name, lambda ctx: report(ctx, compile), report, expect)


PLANTED = tuple(_planted(*bad) for bad in _BAD)

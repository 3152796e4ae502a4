"""The self-test of the numeric check: wrong rules must be caught, right ones must pass.

Every planted rule costs no more than what it replaces, so that extraction takes it; one that does not reach the graph
proves nothing and counts as not caught.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from plow.errors import GraphError
from plow.hw import Machine
from plow.rewrite.numerics import EXACT, REASSOCIATED, check_numerics
from plow.rewrite.rewriter import rewrite
from plow.rewrite.rule import Rule, Variant, fuse
from plow.rewrite.rules import ATTENTION, RULES
from plow.rewrite.samples import NO_ROPE, POST_NORM, PRE_NORM, SCALED, Shape, decoder

BIND = {"T": 1, "S": 1, "C": 64}


@dataclass(frozen=True)
class Planted:
    """A wrong rule that claims to be exact; shape: of the graph that it damages."""

    name: str
    op: str
    variant: Variant
    shape: Shape

    def rule(self) -> Rule:
        return Rule(self.name, "planted", "exact", self.op, self.op, (self.variant,))


def _planted(name: str, op: str, lhs: str, rhs: str, shape: Shape = PRE_NORM) -> Planted:
    return Planted(name, op, fuse(lhs, rhs), shape)


def _planted_qkv(name: str, rhs: str) -> Planted:
    q = "(rope (linear x q_weight) positions)"
    kv = "(kv_append (rope (linear x k_weight) positions) (linear x v_weight) positions slots)"
    variant = Variant({"a": ATTENTION, "q": q, "kv": kv}, {"q": f"(out {rhs} 0)", "kv": f"(out {rhs} 1)"})
    return Planted(name, "qkv", variant, PRE_NORM)


PLANTED: tuple[Planted, ...] = (
    _planted("eps_changed", "norm_linear", "(linear (rms_norm x n) w)", "(norm_linear x n w eps=1e-06)"),
    _planted("zero_centered_lost", "norm_linear", "(linear (rms_norm x n) w)",
             "(norm_linear x n w zero_centered=false)", POST_NORM),
    _planted("gate_and_up_swapped", "act_mul", "(mul (activation gate) up)", "(act_mul up gate)"),
    _planted("gate_and_up_weights_swapped", "gated_linear", "(mul (activation (linear x g)) (linear x u))",
             "(gated_linear x u g)"),
    _planted("wrong_activation", "act_mul", "(mul (activation gate) up)", '(act_mul gate up act="gelu_tanh")'),
    _planted("wrong_residual", "linear_add", "(add (add residual lost) (linear x w))", "(linear_add x w residual)"),
    _planted("residual_normalised", "norm_add", "(add residual (rms_norm x n))", "(norm_add residual n x)", POST_NORM),
    _planted("norm_after_rope", "rope", "(rope (rms_norm x n) positions)", "(rms_norm (rope x positions) n)",
             POST_NORM),
    _planted("window_narrowed", "attention", "(attention q kv positions slots window=8)",
             "(attention q kv positions slots window=4)", POST_NORM),
    _planted_qkv("k_and_v_swapped", "(qkv x - q_weight v_weight k_weight - - positions slots)"),
    _planted_qkv("theta_changed", "(qkv x - q_weight k_weight v_weight - - positions slots theta=10000.0)"),
    _planted_qkv("rope_lost", "(qkv x - q_weight k_weight v_weight - - positions slots rotary_dim=0)"),
    _planted("weight_lost", "activation", "(mul (activation gate) (linear x w))", "(activation gate)"),
    _planted("widths_equated", "linear", "(linear x weight)", "(mul x x)"),
)

CONTROLS: tuple[tuple[tuple[str, ...], Shape], ...] = (
    (("norm_linear",), PRE_NORM),
    (("linear_add",), PRE_NORM),
    (("norm_add",), POST_NORM),
    (("act_mul",), PRE_NORM),
    (("gated_linear",), PRE_NORM),
    (("gated_linear", "norm_gated_linear"), POST_NORM),
    (("norm_rope",), POST_NORM),
    (("qkv",), PRE_NORM),
    (("qkv",), NO_ROPE),
    (("qkv_qk_norm",), POST_NORM),
    (("qkv", "norm_qkv"), PRE_NORM),
    (("qkv_qk_norm", "norm_qkv"), POST_NORM),
    (("scale_scale",), SCALED),
    (("embed_scale",), SCALED),
)
"""Rules that must be chosen together, and the graph. Every registered rule has one."""


def self_test(machine: Machine) -> dict[str, Any]:
    """Each planted rule alone, and as controls the registered rules, each of which must be chosen and change nothing.

    {"schema", "planted", "caught", "controls", "controls_green", "cases": [{"name", "planted", "ok", "detail"}]}
    """
    cases = [_try_planted(p, machine) for p in PLANTED]
    cases += [_try_control(names, shape, machine) for names, shape in CONTROLS]
    planted, controls = ([c for c in cases if c["planted"] is kind] for kind in (True, False))
    return {"schema": "plow.selftest/1", "planted": len(planted), "caught": sum(c["ok"] for c in planted),
            "controls": len(controls), "controls_green": sum(c["ok"] for c in controls), "cases": cases}


def _try_planted(p: Planted, machine: Machine) -> dict[str, Any]:
    case = {"name": p.name, "planted": True, "ok": True}
    graph = decoder(p.shape)
    try:
        result = rewrite(graph, machine, BIND, rules={p.name: p.rule()})
    except GraphError as e:
        return case | {"detail": f"refused: {e.line()}"}
    if not any(p.name in f.rules for b in result.blocks for f in b.fusions):
        return case | {"ok": False, "detail": "did not reach the graph"}
    worst = check_numerics(graph, result.graph)
    return case | {"ok": worst > EXACT, "detail": f"max abs difference {worst:.3g}"}


def _try_control(names: tuple[str, ...], shape: Shape, machine: Machine) -> dict[str, Any]:
    graph = decoder(shape)
    result = rewrite(graph, machine, BIND, rules={name: RULES[name] for name in names})
    worst = check_numerics(graph, result.graph)
    chosen = {rule for b in result.blocks for f in b.fusions for rule in f.rules}
    exact = all(RULES[name].kind == "exact" for name in names)
    ok = chosen == set(names) and worst <= (EXACT if exact else REASSOCIATED)
    return {"name": " + ".join(names), "planted": False, "ok": ok,
            "detail": f"chosen: {', '.join(sorted(chosen)) or 'none'}; max abs difference {worst:.3g}"}

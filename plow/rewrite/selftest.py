"""The self-test of the numeric check: wrong rules must be caught, and beside each of them the right ones must pass.

Every planted rule costs no more than what it replaces, so that extraction takes it; one that does not reach the graph
proves nothing and counts as not caught. The same holds for a right rule that is not chosen.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from plow import hw
from plow.errors import GraphError
from plow.rewrite.numerics import EXACT, REASSOCIATED, check_numerics
from plow.rewrite.result import Rewritten
from plow.rewrite.rewriter import rewrite
from plow.rewrite.rule import Rule, Variant, fuse
from plow.rewrite.rules import ATTENTION, RULES
from plow.rewrite.samples import NO_ROPE, POST_NORM, PRE_NORM, SCALED, Shape, decoder

BIND = {"T": 1, "S": 1, "C": 64}


@dataclass(frozen=True)
class Planted:
    """A wrong rule that claims to be exact; shape: of the graph that it damages; right: the registered rules that do
    the same job on the same graph, all of which must be chosen and change nothing; refused: text of the error that
    must stop it, "" if it is the numeric check that must see it."""

    name: str
    op: str
    variant: Variant
    shape: Shape
    right: tuple[str, ...]
    refused: str = ""

    def rule(self) -> Rule:
        return Rule(self.name, "planted", "exact", self.op, self.op, (self.variant,))

    def caught(self) -> bool:
        return self.judge()[0]

    def control(self) -> bool:
        return self.judge_right()[0]

    def judge(self) -> tuple[bool, str]:
        """(whether the wrong rule is caught, by what)."""
        graph = decoder(self.shape)
        try:
            result = rewrite(graph, hw.load("cpu"), BIND, rules={self.name: self.rule()})
        except GraphError as e:
            return bool(self.refused) and self.refused in e.line(), f"refused: {e.line()}"
        if self.refused:
            return False, "was not refused"
        if self.name not in _chosen(result):
            return False, "did not reach the graph"
        worst = check_numerics(graph, result.graph)
        return worst > EXACT, f"max abs difference {worst:.3g}"

    def judge_right(self) -> tuple[bool, str]:
        """(whether the right rules are chosen and exact, what was seen)."""
        graph = decoder(self.shape)
        result = rewrite(graph, hw.load("cpu"), BIND, rules={name: RULES[name] for name in self.right})
        worst = check_numerics(graph, result.graph)
        exact = all(RULES[name].kind == "exact" for name in self.right)
        ok = _chosen(result) == set(self.right) and worst <= (EXACT if exact else REASSOCIATED)
        return ok, f"chosen: {', '.join(sorted(_chosen(result))) or 'none'}; max abs difference {worst:.3g}"


def _chosen(result: Rewritten) -> set[str]:
    return {rule for b in result.blocks for f in b.fusions for rule in f.rules}


def _one(name: str, op: str, lhs: str, rhs: str, *right: str, shape: Shape = PRE_NORM, where: tuple[str, ...] = (),
         refused: str = "") -> Planted:
    return Planted(name, op, fuse(lhs, rhs, *where), shape, right, refused)


def _grouped(name: str, q: str, k: str, rhs: str, *right: str, shape: Shape = PRE_NORM) -> Planted:
    """A wrong grouped projection. q, k: what attention and cache get; rhs: weights, head norms and attributes."""
    text = rhs.format(rest="positions slots")
    left = {"a": ATTENTION, "q": q, "kv": f"(kv_append {k} (linear x v_weight) positions slots)"}
    return Planted(name, "qkv", Variant(left, {"q": f"(out (qkv x - {text}) 0)", "kv": f"(out (qkv x - {text}) 1)"}),
                   shape, right)


Q, K = "(linear x q_weight)", "(linear x k_weight)"
Q_ROPE, K_ROPE = f"(rope {Q} positions)", f"(rope {K} positions)"
Q_NORM, K_NORM = f"(rope (rms_norm {Q} q_norm) positions)", f"(rope (rms_norm {K} k_norm) positions)"
GATED = ("gated_linear", "norm_gated_linear")

PLANTED: tuple[Planted, ...] = (
    _one("eps_changed", "norm_linear", "(linear (rms_norm x n) w)", "(norm_linear x n w eps=1e-06)", "norm_linear"),
    _one("zero_centered_lost", "norm_linear", "(linear (rms_norm x n) w)", "(norm_linear x n w zero_centered=false)",
         "norm_linear", shape=POST_NORM),
    _one("gate_and_up_swapped", "act_mul", "(mul (activation gate) up)", "(act_mul up gate)", "act_mul"),
    _one("wrong_activation", "act_mul", "(mul (activation gate) up)", '(act_mul gate up act="gelu_tanh")', "act_mul"),
    _one("gate_and_up_weights_swapped", "gated_linear", "(mul (activation (linear x g)) (linear x u))",
         "(gated_linear x u g)", "gated_linear"),
    _one("eps_before_gate_changed", "norm_gated_linear",
         "(mul (activation (linear (rms_norm x n) g)) (linear (rms_norm x n) u))",
         "(norm_gated_linear x n g u eps=0.001)", *GATED, shape=POST_NORM),
    _one("weight_lost", "activation", "(mul (activation gate) (linear x w))", "(activation gate)", *GATED,
         refused="'layer.0.up_proj.weight'"),
    _one("wrong_residual", "linear_add", "(add (add residual lost) (linear x w))", "(linear_add x w residual)",
         "linear_add"),
    _one("residual_normalised", "norm_add", "(add residual (rms_norm x n))", "(norm_add residual n x)", "norm_add",
         shape=POST_NORM),
    _one("norm_after_rope", "rope", "(rope (rms_norm x n) positions)", "(rms_norm (rope x positions) n)", "norm_rope",
         shape=POST_NORM),
    _one("window_narrowed", "attention", "(attention q kv positions slots window=8)",
         "(attention q kv positions slots window=4)", "qkv_qk_norm", "norm_qkv", shape=POST_NORM),
    _grouped("k_and_v_swapped", Q_ROPE, K_ROPE, "q_weight v_weight k_weight - - {rest}", "qkv", "norm_qkv"),
    _grouped("theta_changed", Q_ROPE, K_ROPE, "q_weight k_weight v_weight - - {rest} theta=10000.0", "qkv"),
    _grouped("rope_lost", Q_ROPE, K_ROPE, "q_weight k_weight v_weight - - {rest} rotary_dim=0", "qkv"),
    _grouped("rope_invented", Q, K, "q_weight k_weight v_weight - - {rest} rotary_dim=16 theta=10000.0", "qkv",
             shape=NO_ROPE),
    _grouped("head_norms_swapped", Q_NORM, K_NORM, "q_weight k_weight v_weight k_norm q_norm {rest} eps=0.0 qk_eps=eps",
             "qkv_qk_norm", shape=POST_NORM),
    _one("factors_added", "scale", "(scale (scale x factor=a) factor=b)", "(scale x factor=c)", "scale_scale",
         shape=SCALED, where=("(= c (+ a b))",)),
    _one("inner_factor_lost", "embed", "(scale (embed t table) factor=f)", "(embed t table scale=f)", "embed_scale",
         shape=SCALED),
    _one("widths_equated", "linear", "(linear x weight)", "(mul x x)",
         "qkv", "linear_add", refused="merge attempted for function width"),
)


def planted() -> tuple[Planted, ...]:
    """The cases; each has `name`, `caught()` and `control()`."""
    return PLANTED


def self_test() -> dict[str, Any]:
    """{"schema", "planted", "caught", "controls", "controls_green", "cases": [{"name", "planted", "ok", "detail"}]}."""
    cases: list[dict[str, Any]] = []
    for p in PLANTED:
        for is_wrong, name, (ok, detail) in ((True, p.name, p.judge()), (False, " + ".join(p.right), p.judge_right())):
            cases.append({"name": name, "planted": is_wrong, "ok": ok, "detail": detail})
    wrong, right = ([c for c in cases if c["planted"] is kind] for kind in (True, False))
    return {"schema": "plow.selftest/1", "planted": len(wrong), "caught": sum(c["ok"] for c in wrong),
            "controls": len(right), "controls_green": sum(c["ok"] for c in right), "cases": cases}

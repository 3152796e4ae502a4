"""The rules. Each states only what it changes: equal attributes are implied by equal names (see `pattern`)."""

from __future__ import annotations

from plow.rewrite.rule import Rule, Variant, check_rule, fuse

RULES: dict[str, Rule] = {}

WHOLE_ROW = "(= (width norm_weight) (width x))"
"""A norm that is fused into a projection normalises whole rows; a per-head norm (shorter weight) stays outside."""


def _rule(rule: Rule) -> None:
    RULES[rule.name] = check_rule(rule)


_rule(Rule(
    "norm_linear", "normalise the rows while a projection reads them", "exact", "norm_linear", "linear",
    (fuse("(linear (rms_norm x norm_weight) weight)", "(norm_linear x norm_weight weight)", WHOLE_ROW),)))

_rule(Rule(
    "linear_add", "add the residual while a projection stores its result", "exact", "linear_add", "linear",
    (fuse("(add residual (linear x weight))", "(linear_add x weight residual)"),
     fuse("(add (linear x weight) residual)", "(linear_add x weight residual)"))))

_rule(Rule(
    "norm_add", "add the residual while a norm stores its result (post-norm)", "exact", "norm_add", "rms_norm",
    (fuse("(add residual (rms_norm x weight))", "(norm_add x weight residual)"),
     fuse("(add (rms_norm x weight) residual)", "(norm_add x weight residual)"))))

_rule(Rule(
    "act_mul", "multiply by the gate's activation in one pass", "exact", "act_mul", "mul",
    (fuse("(mul (activation gate) up)", "(act_mul gate up)"),
     fuse("(mul up (activation gate))", "(act_mul gate up)"))))

SAME_GATE_UP = "(= (dtype gate_weight) (dtype up_weight))"
_rule(Rule(
    "gated_linear", "gate and up projection of one input as one projection of interleaved rows", "exact",
    "gated_linear", "mlp_gate_up",
    (fuse("(mul (activation (linear x gate_weight)) (linear x up_weight))", "(gated_linear x gate_weight up_weight)",
          SAME_GATE_UP),
     fuse("(mul (linear x up_weight) (activation (linear x gate_weight)))", "(gated_linear x gate_weight up_weight)",
          SAME_GATE_UP))))

_rule(Rule(
    "norm_gated_linear", "normalise the rows while the gated projection reads them", "exact",
    "norm_gated_linear", "mlp_gate_up",
    (fuse("(gated_linear (rms_norm x norm_weight) gate_weight up_weight)",
          "(norm_gated_linear x norm_weight gate_weight up_weight)", WHOLE_ROW),)))

_rule(Rule(
    "norm_rope", "rotate heads right after their norm", "exact", "norm_rope", "rope",
    (fuse("(rope (rms_norm x weight) positions)", "(norm_rope x weight positions)", "(= (width weight) head_dim)"),)))

ATTENTION = "(attention q kv positions slots scale=_ window=_ softcap=_)"
"""Anchor of the QKV rules: it tells q from k and brings the number of heads."""
GROUPED = (
    "(= (rows q_weight) (* num_heads head_dim))",
    "(= (rows k_weight) (* num_kv_heads head_dim))",
    "(= (rows v_weight) (* num_kv_heads head_dim))",
    "(= (dtype q_weight) (dtype k_weight))",
    "(= (dtype k_weight) (dtype v_weight))",
)


def _qkv(q: str, kv: str, rhs: str, *where: str) -> Variant:
    return Variant({"a": ATTENTION, "q": q, "kv": kv}, {"q": f"(out {rhs} 0)", "kv": f"(out {rhs} 1)"}, GROUPED + where)


_rule(Rule(
    "qkv", "q, k and v projection of one input, rope and the cache append as one grouped projection", "exact",
    "qkv", "qkv",
    (_qkv("(rope (linear x q_weight) positions)",
          "(kv_append (rope (linear x k_weight) positions) (linear x v_weight) positions slots)",
          "(qkv x - q_weight k_weight v_weight - - positions slots)"),
     _qkv("(linear x q_weight)", "(kv_append (linear x k_weight) (linear x v_weight) positions slots)",
          "(qkv x - q_weight k_weight v_weight - - positions slots rotary_dim=0 theta=0.0)"))))

PER_HEAD = ("(= (width q_norm) head_dim)", "(= (width k_norm) head_dim)")
Q_NORMED = "(rms_norm (linear x q_weight) q_norm eps=qk_eps)"
K_NORMED = "(rms_norm (linear x k_weight) k_norm eps=qk_eps)"
QKV_NORMED = "qkv x - q_weight k_weight v_weight q_norm k_norm positions slots eps=0.0"
_rule(Rule(
    "qkv_qk_norm", "the grouped projection with per-head norms of q and k", "exact", "qkv", "qkv",
    (_qkv(f"(rope {Q_NORMED} positions)",
          f"(kv_append (rope {K_NORMED} positions) (linear x v_weight) positions slots)",
          f"({QKV_NORMED})", *PER_HEAD),
     _qkv(Q_NORMED, f"(kv_append {K_NORMED} (linear x v_weight) positions slots)",
          f"({QKV_NORMED} rotary_dim=0 theta=0.0)", *PER_HEAD))))

WEIGHTS = "q_weight k_weight v_weight"
_rule(Rule(
    "norm_qkv", "normalise the rows while the grouped projection reads them", "exact", "qkv", "qkv",
    (Variant({"t": f"(qkv (rms_norm x norm_weight) - {WEIGHTS} - - positions slots eps=_ zero_centered=_)"},
             {"t": f"(qkv x norm_weight {WEIGHTS} - - positions slots)"}, (WHOLE_ROW,)),
     Variant({"t": f"(qkv (rms_norm x norm_weight) - {WEIGHTS} q_norm k_norm positions slots eps=_)"},
             {"t": f"(qkv x norm_weight {WEIGHTS} q_norm k_norm positions slots)"}, (WHOLE_ROW, *PER_HEAD)))))

_rule(Rule(
    "scale_scale", "two constant factors in a row are one", "reassociation", "scale", "scale",
    (fuse("(scale (scale x factor=inner) factor=outer)", "(scale x factor=product)", "(= product (* inner outer))"),)))

_rule(Rule(
    "embed_scale", "a constant factor behind the embedding is the embedding's own", "reassociation", "embed", "embed",
    (fuse("(scale (embed tokens table scale=inner) factor=outer)", "(embed tokens table scale=product)",
          "(= product (* inner outer))"),)))

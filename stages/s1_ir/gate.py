"""The gate of stage 1: the graph made from config.json is the model, and this gate would notice if it were not."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from plow.errors import ToolMissing
from plow.oracle.client import HFOracle
from stages.base import Check, GateReport, StageContext
from stages.s1_ir import golden, numeric, static
from stages.s1_ir.subject import DOT, POINTWISE, Oracle, Subject

STATIC: dict[Callable[[Subject], list[Check]], tuple[str, ...]] = {
    static.fields: ("fields_unaccounted", "fields_missing_silent", "fields_senseless_silent", "fields_without_effect"),
    static.weights: ("weights_mismatched",),
    static.shapes: ("values_untyped",),
}
NUMERIC: dict[Callable[[Subject, Oracle], list[Check]], tuple[str, ...]] = {
    numeric.stated: ("attributes_differing", "attributes_compared_per_layer"),
    numeric.operators: ("operators_not_compared", POINTWISE, DOT),
    numeric.logits: ("logits_rel_error", "logits_error_over_noise"),
    numeric.greedy: ("greedy_disagreements", "greedy_tokens_judged"),
    numeric.powers: ("power_logits_min", "power_unnamed"),
}
CHECKS = tuple(name for names in (*STATIC.values(), *NUMERIC.values()) for name in names)


def gate(ctx: StageContext) -> GateReport:
    """Without the oracle extra: from golden files of exactly this checkpoint if there are any, and what these cannot
    judge is listed as not run; else raises ToolMissing (no verdict). `--set only=CHECK` runs one part."""
    s = Subject.open(ctx)
    with ExitStack() as stack:
        try:
            return judge(s, lambda: stack.enter_context(HFOracle(ctx.checkpoint)))
        except ToolMissing as e:
            stored = golden.find(s)
            if stored is None:
                raise
            return from_golden(s, stored, e.line())


def from_golden(s: Subject, stored: dict[str, Any], why: str) -> GateReport:
    checks = [c for part in STATIC for c in part(s)]
    left = [name for names in NUMERIC.values() for name in names if name not in golden.CHECKS]
    return GateReport(1, checks + golden.judge(s, stored), [*left, f"golden files stand in for the oracle: {why}"])


def judge(s: Subject, start_oracle: Callable[[], Oracle]) -> GateReport:
    """The oracle starts when the first part needs it. A graph whose weights are wrong is not run."""
    report, only = GateReport(1), s.ctx.params.get("only")
    for part, names in STATIC.items():
        if only in (None, *names):
            report.checks += part(s)
        if part is static.weights and not all(c.ok for c in report.checks if c.name in names):
            return report
    oracle: Oracle | None = None
    for ask, names in NUMERIC.items():
        if only in (None, *names):
            oracle = oracle or start_oracle()
            report.checks += ask(s, oracle)
    return report

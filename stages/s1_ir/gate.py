"""The gate of stage 1: the graph made from config.json is the model, and this gate would notice if it were not."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

from plow.oracle.client import HFOracle
from stages.base import Check, GateReport, StageContext
from stages.s1_ir import numeric, static
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
    """Needs the oracle extra: raises ToolMissing (no verdict) without it. `--set only=CHECK` runs one part."""
    with ExitStack() as stack:
        return judge(Subject.open(ctx), lambda: stack.enter_context(HFOracle(ctx.checkpoint)))


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

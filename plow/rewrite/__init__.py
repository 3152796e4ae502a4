"""Equality saturation: named rules over an e-graph (egglog), extraction by price, and the explanation of what fired.

Belongs here: the egglog schema generated from the op table, the rules as data, the extraction, the numeric check of a
rewrite, the report. Does not belong here: operators and their meaning (`graph/`), prices (`cost/`), the packet form of
a fused operator (`tiles/`). A rewrite stays inside a scope; what the extraction returns is what the compiler emits.
"""

from plow.rewrite.egraph import Limits
from plow.rewrite.numerics import check_numerics
from plow.rewrite.result import BlockReport, Fusion, Rewritten
from plow.rewrite.rewriter import rewrite
from plow.rewrite.rule import Rule, Variant, fuse
from plow.rewrite.rules import RULES

__all__ = [
    "RULES", "BlockReport", "Fusion", "Limits", "Rewritten", "Rule", "Variant", "check_numerics", "fuse", "rewrite",
]

"""Stage 2, egglog: the rewrite ends, reaches the declared fusions, changes no result and explains itself.

Belongs here: the checks of a rewrite, and the declaration of what each family must reach. Does not belong here: rules,
extraction and prices (plow/rewrite, plow/cost), proofs of rules (lean/).
"""

from stages.base import Stage
from stages.s2_egglog.gate import CHECKS, gate
from stages.s2_egglog.planted import PLANTED
from stages.s2_egglog.work import work

STAGE = Stage(
    number=2,
    name="s2_egglog",
    title="egglog",
    sources=(
        "plow/errors.py",
        "plow/compile.py",
        "plow/graph/**",
        "plow/checkpoint/**",
        "plow/models/**",
        "plow/rewrite/**",
        "plow/cost/**",
        "plow/hw/**",
        "plow/tiles/**",
        "plow/schedule/**",
        "stages/subject.py",
    ),
    work=work,
    gate=gate,
    checks=CHECKS,
    planted=PLANTED,
    headline=("fusions_missing", "numeric_error_over_bound", "predicted_cost_ratio"),
    editable=("plow/rewrite/**", "plow/cost/**", "plow/hw/**", "tests/rewrite/**", "tests/cost/**"),
    gate_limit_s=300.0,
    work_limit_s=300.0,
)

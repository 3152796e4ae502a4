"""Stage 1, IR: config.json and tensors become the graph, and the graph computes what transformers computes.

Belongs here: the checks of config fields, weights, shapes and results, and the power check of these. Does not belong
here: families (plow/models), the oracle process (plow/oracle), anything about fused operators or a target.
"""

from stages.base import Stage
from stages.s1_ir.gate import CHECKS, gate
from stages.s1_ir.planted import PLANTED
from stages.s1_ir.work import work

STAGE = Stage(
    number=1,
    name="s1_ir",
    title="IR",
    sources=(
        "plow/errors.py",
        "plow/graph/**",
        "plow/checkpoint/**",
        "plow/models/**",
        "plow/oracle/**",
        "stages/subject.py",
        "stages/substeps.py",
    ),
    work=work,
    gate=gate,
    checks=CHECKS,
    planted=PLANTED,
    headline=("logits_rel_error", "greedy_disagreements", "power_logits_min"),
    editable=(
        "plow/graph/**",
        "plow/checkpoint/**",
        "plow/models/**",
        "tests/graph/**",
        "tests/checkpoint/**",
        "tests/models/**",
    ),
    gate_limit_s=600.0,
    work_limit_s=600.0,
)

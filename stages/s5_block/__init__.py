"""Stage 5, block: one layer of every kind with real weights, operator by operator, over batch x context, in its time.

Belongs here: truncated bundles, programs that stop after one operator, bit-equality of batches and chunks, block time
against its floor. Does not belong here: whole-model serving (s6_runtime), comparisons with other engines (s7_campaign).
"""

from stages.base import Stage
from stages.s5_block.gate import CHECKS, gate
from stages.s5_block.planted import PLANTED
from stages.s5_block.work import work

STAGE = Stage(
    number=5,
    name="s5_block",
    title="Block",
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
        "plow/packet/**",
        "plow/runtime/**",
        "plow/oracle/**",
        "plow/tune/**",
        "kernels/**",
        "stages/subject.py",
        "stages/substeps.py",
        "stages/bundles.py",
        "stages/s1_ir/**",
    ),
    work=work,
    gate=gate,
    checks=CHECKS,
    planted=PLANTED,
    headline=("operator_error_oracle", "rows_not_bit_equal", "block_time_over_floor"),
    editable=("plow/tiles/**", "plow/schedule/**", "plow/packet/**", "plow/runtime/**", "kernels/**", "tests/**"),
    timed=True,
    gate_limit_s=900.0,
    work_limit_s=600.0,
)

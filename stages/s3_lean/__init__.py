"""Stage 3, Lean: the kernel certifies every program's bytes, and the library that it does so with has no holes.

Belongs here: the checks of the library and of certificates, and the corrupted payloads that must be rejected. Does not
belong here: proofs (lean/), payloads and certificates themselves (plow/verify).
"""

from stages.base import Stage
from stages.s3_lean.gate import CHECKS, gate
from stages.s3_lean.planted import PLANTED
from stages.s3_lean.work import work

STAGE = Stage(
    number=3,
    name="s3_lean",
    title="Lean",
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
        "plow/verify/**",
        "lean/**",
        "stages/subject.py",
    ),
    work=work,
    gate=gate,
    checks=CHECKS,
    planted=PLANTED,
    headline=("programs_certified", "corruptions_accepted", "checkpoints_not_run"),
    editable=("lean/**", "plow/verify/**", "plow/schedule/**", "tests/verify/**", "tests/lean/**", "tests/schedule/**"),
    gate_limit_s=900.0,
    work_limit_s=900.0,
)

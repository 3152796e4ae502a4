"""Stage 6, runtime: a certified bundle behind a real server, at the declared concurrency."""

from __future__ import annotations

from stages.base import Progress, Stage, StageContext
from stages.bundles import compile_fresh, publish
from stages.s6_runtime.gate import gate
from stages.s6_runtime.planted import PLANTED


def work(ctx: StageContext, progress: Progress) -> None:
    """Build and certify the bundle that is to be deployed, and put it where the user wants it."""
    progress("compiling the bundle to deploy")
    bundle = ctx.workdir / "bundle"
    compile_fresh(ctx, bundle, certified=True)
    publish(ctx, bundle)


STAGE = Stage(
    number=6,
    name="s6_runtime",
    title="Runtime: served under concurrency",
    sources=(
        "plow/runtime/**",
        "plow/serve/**",
        "plow/packet/**",
        "plow/schedule/**",
        "plow/tiles/**",
        "plow/compile.py",
        "kernels/**",
    ),
    work=work,
    gate=gate,
    checks=(
        "certified",
        "requests_complete",
        "ttft_p50_s",
        "tpot_p50_s",
        "streaming_equals_whole",
        "alone_equals_in_batch",
        "blocks_left_after_disconnects",
        "memory_over_prediction",
        "process_over_prediction",
    ),
    planted=PLANTED,
    headline=("ttft_p50_s", "tpot_p50_s"),
    editable=("plow/runtime/**", "plow/serve/**", "tests/**"),
    timed=True,
)

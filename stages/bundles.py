"""Fresh bundles for gates and work: compiled from the checkpoint with the winners of stage 4."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from plow.checkpoint import Checkpoint
from plow.compile import Options, compile_checkpoint
from plow.tune.choices import apply_tuned
from plow.tune.machine import QUIET_BUSY, wait_until_quiet
from stages.base import Contended, StageContext

MAX_CTX = 2048
"""Positions a sequence in a bring-up's bundle, where the model allows as many."""


def compile_fresh(ctx: StageContext, out: Path, certified: bool = False, **options: Any) -> dict[str, Any]:
    """Compile the context's checkpoint into `out`; returns the manifest. Winners are read from the artifacts' tune
    database if there is one. certified: also have Lean certify it, as a deployment needs."""
    config = Checkpoint.open(ctx.checkpoint).config
    longest = config.get("max_position_embeddings", MAX_CTX)
    chosen = Options(max_ctx=min(int(ctx.params.get("max_ctx", MAX_CTX)), longest), **options)
    if tune_database(ctx).exists():
        apply_tuned(chosen, tune_database(ctx))
    manifest = compile_checkpoint(ctx.checkpoint, out, chosen)
    if certified:
        from plow.verify import certify

        certify(out / "model.pkt", out / "certificates")
    return manifest


def tune_database(ctx: StageContext) -> Path:
    return ctx.artifacts / "tune.jsonl"


def publish(ctx: StageContext, bundle: Path) -> None:
    """Move a finished bundle to `--bundle-out`, if the user gave one."""
    target = ctx.params.get("bundle_out")
    if target:
        shutil.rmtree(target, ignore_errors=True)
        Path(target).parent.mkdir(parents=True, exist_ok=True)
        shutil.move(bundle, target)


def require_quiet() -> None:
    """Wait for a quiet machine before something is timed. Raises Contended (exit 76) when others keep computing."""
    share = wait_until_quiet()
    if share > QUIET_BUSY:
        raise Contended(f"others use {share:.0%} of the cores", "this machine", "stop them and run the gate again")

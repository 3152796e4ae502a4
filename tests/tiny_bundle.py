"""Compiled bundles of the tiny checkpoints, built once for all processes of a test run."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from plow.compile import Options, compile_checkpoint

OPTIONS = Options(max_ctx=128, max_batch=4, rows=(1, 2, 4, 16))


def tiny_bundle(checkpoint: Path, factory: pytest.TempPathFactory, options: Options = OPTIONS) -> Path:
    """Directory of the checkpoint's bundle (not certified: that takes Lean)."""
    base = factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    out = shared / "bundles" / checkpoint.name
    out.parent.mkdir(exist_ok=True)
    with (out.parent / f"{checkpoint.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not out.exists():
            compile_checkpoint(checkpoint, out, options)
    return out

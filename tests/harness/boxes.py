"""Sandboxes for the tests of this room: made once a process, copied for each test."""

from __future__ import annotations

import atexit
import shutil
from functools import lru_cache
from pathlib import Path
from tempfile import mkdtemp

from harness.cheats import sandbox
from harness.cheats.sandbox import Sandbox


@lru_cache
def original(green: bool, stages: int) -> Sandbox:
    folder = Path(mkdtemp(prefix="plow-box-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    root = folder / "repo"
    return sandbox.make(root, stages) if green else sandbox.empty(root, stages)


def green_box(tmp_path: Path, stages: int = 1) -> Sandbox:
    """With a green bring-up that is committed as the base."""
    return original(True, stages).copy(tmp_path / "box")


def empty_box(tmp_path: Path, stages: int = 2) -> Sandbox:
    """Demo stages and a checkpoint, no bring-up yet."""
    return original(False, stages).copy(tmp_path / "box")

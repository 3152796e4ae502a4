"""Fixtures of every test room: tiny random checkpoints, and the real demo checkpoints where they are present."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from filelock import FileLock

from plow.compile import Options, compile_checkpoint
from plow.oracle import tiny

DEMO = Path(__file__).parents[1] / ".demo"


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """2 layers, hidden 64, 4 query and 2 key/value heads of 32 (not hidden / heads), untied head, vocabulary 320."""
    return tiny.write(tmp_path_factory.mktemp("tiny") / "llama", tiny.LLAMA, seed=1)


@pytest.fixture(scope="session")
def tiny_gemma3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """3 layers (sliding, full, sliding; window 8), hidden 64, 4 query heads and 1 key/value head of 32, tied head."""
    return tiny.write(tmp_path_factory.mktemp("tiny") / "gemma3", tiny.GEMMA3, seed=2)


def _demo(name: str) -> Path:
    path = DEMO / name
    if not (path / "model.safetensors").exists():
        pytest.skip(f"real checkpoint {name} is absent: python -m plow.checkpoint.demo {name} --out .demo/{name}")
    return path


@pytest.fixture(scope="session")
def demo_smollm2() -> Path:
    """SmolLM2-135M-Instruct (Apache-2.0). Use it in tests marked `real`."""
    return _demo("smollm2-135m")


@pytest.fixture(scope="session")
def demo_gemma3() -> Path:
    """Gemma-3-270M (Gemma terms). Use it in tests marked `real`."""
    return _demo("gemma3-270m")


@pytest.fixture(scope="session")
def tiny_bundles(tiny_llama: Path, tiny_gemma3: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """name -> uncertified bundle of the tiny checkpoints: 2 workers where there are 2 cores, 4 sequences of up to 128
    positions, programs for 1, 4 and 32 rows. Compiled once a session; pytest-xdist's processes share the result."""
    root = tmp_path_factory.getbasetemp()
    shared = root.parent if root.name.startswith("popen-") else root
    with FileLock(shared / "bundles.lock"):
        out = {"llama": shared / "bundle-llama", "gemma3": shared / "bundle-gemma3"}
        for name, checkpoint in (("llama", tiny_llama), ("gemma3", tiny_gemma3)):
            if not (out[name] / "manifest.json").exists():
                workers = min(2, len(os.sched_getaffinity(0)))
                options = Options(max_ctx=128, max_batch=4, rows=(1, 4, 32), workers=workers)
                compile_checkpoint(checkpoint, out[name], options)
    return out

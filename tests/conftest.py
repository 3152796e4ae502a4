"""Fixtures of every test room: tiny random checkpoints, and the real demo checkpoints where they are present."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny_bundle import tiny_bundle

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


@pytest.fixture(scope="session")
def tiny_qwen3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """2 layers, hidden 64, 4 query and 2 key/value heads of 32 with norms of q and k, tied head."""
    return tiny.write(tmp_path_factory.mktemp("tiny") / "qwen3", tiny.QWEN3, seed=6)


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
def tiny_bundles(
    tiny_llama: Path, tiny_gemma3: Path, tiny_qwen3: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    """name -> uncertified bundle of the tiny checkpoints; see `tiny_bundle.OPTIONS`."""
    return {
        "llama": tiny_bundle(tiny_llama, tmp_path_factory),
        "gemma3": tiny_bundle(tiny_gemma3, tmp_path_factory),
        "qwen3": tiny_bundle(tiny_qwen3, tmp_path_factory),
    }

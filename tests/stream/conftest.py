"""Checkpoints and bundles of the STREAM tests, made once a test process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import stream_rig

from plow.runtime.bundle import Bundle

WORKERS = {"llama": 8, "llama_tied": 3, "gemma3": 5, "qwen3": 6}


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    made: dict[str, Path] = {}

    def get(name: str) -> Path:
        if name not in made:
            made[name] = stream_rig.checkpoint(tmp_path_factory.mktemp("stream") / name, name)
        return made[name]

    return get


@pytest.fixture(scope="session")
def bundle(checkpoint: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Bundle]:
    made: dict[tuple[str, int], Bundle] = {}

    def get(name: str, workers: int = 0) -> Bundle:
        key = (name, workers or WORKERS[name])
        if key not in made:
            made[key] = stream_rig.bundle(checkpoint(name), tmp_path_factory.mktemp("bundle"), key[1])
        return made[key]

    return get


@pytest.fixture(params=list(stream_rig.MODELS))
def model(request: pytest.FixtureRequest) -> str:
    return str(request.param)

"""The interpreter in every vector width that this processor runs, compiled once a session."""

from __future__ import annotations

import ctypes
import fcntl
from pathlib import Path

import numpy as np
import pytest

from plow.runtime.build_cpu import SIMD, build, cpu_features
from plow.runtime.cpu_lib import open_library

VARIANTS = [s.name for s in SIMD.values() if s.features <= cpu_features()]


def library_path(tmp_path_factory: pytest.TempPathFactory, variant: str) -> Path:
    """Built by the first test process that asks; the others wait for it."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if base.name.startswith("popen-") else base
    folder = shared / f"interp-{variant}"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "interp.so").exists():
            build(folder, simd=variant)
    return folder / "interp.so"


@pytest.fixture(scope="session", params=VARIANTS)
def lib(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """One interpreter; tests that use it run once a vector width."""
    return open_library(library_path(tmp_path_factory, request.param))


@pytest.fixture(scope="session")
def widest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """interp.so of the widest variant, for tests that do not depend on the width."""
    return library_path(tmp_path_factory, VARIANTS[0])


@pytest.fixture(scope="session")
def libs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ctypes.CDLL]:
    """Every variant, for tests of their agreement."""
    return {v: open_library(library_path(tmp_path_factory, v)) for v in VARIANTS}


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)

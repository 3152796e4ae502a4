"""A tiny program for the GPU, and a backend on a fake device."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
from fake_cupy import FakeCupy
from gpu_rig import LLAMA, interpret, lowered

from plow.runtime.bundle import Bundle
from plow.runtime.cuda import CudaBackend


@pytest.fixture(autouse=True)
def no_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fake device is nobody else's."""
    monkeypatch.setattr("plow.runtime.cuda.hold", lambda cp: None)


@pytest.fixture(scope="session")
def gpu_bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return lowered(tmp_path_factory.mktemp("cuda"), LLAMA)


Open = Callable[..., CudaBackend]


@pytest.fixture
def open_fake(monkeypatch: pytest.MonkeyPatch) -> Open:
    """Opens a bundle on a fake device; keywords describe the device (FakeCupy)."""

    def open_it(bundle: Bundle, launch: Any = None, **device: Any) -> CudaBackend:
        monkeypatch.setitem(sys.modules, "cupy", FakeCupy(launch or interpret(bundle), **device))
        return CudaBackend(bundle)

    return open_it



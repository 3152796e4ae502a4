"""Opening a backend by name. Nothing falls back: a device that cannot run is an error."""

from __future__ import annotations

from plow.errors import RequestError
from plow.runtime.bundle import Bundle
from plow.runtime.step import Backend

BACKENDS = ("cpu", "numpy")


def open_backend(bundle: Bundle, name: str = "cpu") -> Backend:
    """name: "cpu" (the C interpreter of the bundle) or "numpy" (the readable oracle; slow)."""
    if name == "cpu":
        from plow.runtime.cpu import CpuBackend

        return CpuBackend(bundle)
    if name == "numpy":
        from plow.runtime.numpy_vm import NumpyBackend

        return NumpyBackend(bundle)
    raise RequestError(f"unknown backend {name!r}", "--backend", f"use {' or '.join(BACKENDS)}")

"""Opening a backend by name. Nothing falls back: a device that cannot run is an error."""

from __future__ import annotations

from plow.errors import RequestError
from plow.runtime.bundle import Bundle
from plow.runtime.step import Backend

BACKENDS = {"cpu": ("cpu",), "cuda": ("h200",), "numpy": ("cpu", "h200")}
"""Backend -> targets whose bundles it runs."""
DEFAULT = {"cpu": "cpu", "h200": "cuda"}
"""Target -> backend."""


def open_backend(bundle: Bundle, name: str = "") -> Backend:
    """name: "cpu" (the C interpreter of the bundle), "cuda" (the GPU), or "numpy" (the readable oracle; slow); empty:
    what the bundle was built for. Raises RequestError for an unknown name or a bundle that the backend does not run."""
    name = name or DEFAULT[bundle.target]
    if name not in BACKENDS:
        raise RequestError(f"unknown backend {name!r}", "--backend", f"use {' or '.join(BACKENDS)}")
    if bundle.target not in BACKENDS[name]:
        raise RequestError(
            f"backend {name} does not run a bundle for {bundle.target!r}",
            "--backend",
            f"use --backend {DEFAULT[bundle.target]}, or build one with plowc --gpu {BACKENDS[name][0]}",
        )
    if name == "cpu":
        from plow.runtime.cpu import CpuBackend

        return CpuBackend(bundle)
    if name == "cuda":
        from plow.runtime.cuda import CudaBackend

        return CudaBackend(bundle)
    from plow.runtime.numpy_vm import NumpyBackend

    return NumpyBackend(bundle)

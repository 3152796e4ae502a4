"""One process a GPU: the interpreter stays on all SMs, and two of them would take turns at the scheduler's pace."""

from __future__ import annotations

import fcntl
import os
import tempfile
from pathlib import Path
from typing import IO, Any

from plow.runtime.cuda_device import DeviceError

_held: dict[str, IO[str]] = {}


def lock_file(bus: str) -> Path:
    """Of the GPU at a PCI address."""
    return Path(tempfile.gettempdir()) / f"plow-gpu-{bus.replace(':', '-')}.lock"


def hold(cp: Any) -> None:
    """Hold the current device until the process ends. Raises DeviceError naming the process that has it; where no file
    can be locked, nothing is promised and nothing refused."""
    bus = str(cp.cuda.Device().pci_bus_id)
    if bus in _held:
        return
    try:
        file = os.fdopen(os.open(lock_file(bus), os.O_RDWR | os.O_CREAT, 0o666), "r+")
    except OSError:
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = file.read().strip() or "unknown"
        file.close()
        what = f"another plow process (pid {holder}) holds the GPU"
        raise DeviceError(what, bus, "end it, or choose another GPU with CUDA_VISIBLE_DEVICES") from None
    file.truncate(0)
    file.write(str(os.getpid()))
    file.flush()
    _held[bus] = file

"""The machine lease: one timed gate at a time on a machine, whichever bring-up or user session it belongs to."""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from harness.errors import LeaseTimeout

WAIT_S = 600.0
POLL_S = 0.2


def default_path() -> Path:
    return Path(tempfile.gettempdir()) / f"plow-machine-{os.getuid()}.lock"


@contextmanager
def lease(wait_s: float = WAIT_S, path: Path | None = None) -> Iterator[None]:
    """Hold the machine; the kernel drops the lease when the process dies. Raises LeaseTimeout after `wait_s`."""
    path = path or default_path()
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + wait_s
    try:
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise LeaseTimeout(
                        f"the machine lease was not free within {wait_s:g} s",
                        str(path),
                        "wait until the other timed gate ends",
                    ) from None
                time.sleep(POLL_S)
        yield
    finally:
        os.close(fd)

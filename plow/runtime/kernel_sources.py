"""What identifies the kernel sources that an interpreter was built from, whatever the compiler."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from plow.packet.cheader import header


def source_digest(paths: Iterable[Path]) -> str:
    """sha256 of the sources, in the given order, and of the ABI header that they are compiled with."""
    found = hashlib.sha256()
    for path in paths:
        found.update(path.name.encode() + b"\0" + path.read_bytes())
    found.update(header().encode())
    return found.hexdigest()

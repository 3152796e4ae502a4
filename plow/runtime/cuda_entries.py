"""Which build of the CUDA interpreter runs a program: there is one for each number of columns and head size."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from plow.packet.abi import STREAM_COLUMNS, Opcode
from plow.packet.codec import decode
from plow.packet.container import ProgramRecord


def entry_of(record: ProgramRecord) -> tuple[int, int]:
    """(columns, head_dim) of a STREAM program; one without attention runs on any head_dim."""
    packets = np.concatenate(record.lists)
    heads = [decode(p).dims for p in packets[packets["opcode"] == Opcode.STREAM_ATTENTION][:1]]
    return (heads[0]["cols"], heads[0]["head_dim"]) if heads else (1 if record.rows == 1 else STREAM_COLUMNS, 64)


def kernel_name(record: ProgramRecord) -> str:
    """The ENTRY of the program."""
    cols, head_dim = entry_of(record)
    return f"plow_interp_c{cols}_d{head_dim}"


def entry_defines(programs: Iterable[ProgramRecord]) -> tuple[str, ...]:
    """The compiler's options that build what these programs need and no more."""
    needed = sorted({entry_of(p) for p in programs})
    return "-DPLOW_ONLY", *(f"-DPLOW_C{cols}_D{head_dim}" for cols, head_dim in needed)

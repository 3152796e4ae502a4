"""The disassembler: one line a packet, every field by name."""

from __future__ import annotations

from collections.abc import Iterator

from plow.packet.abi import Domain, Epilogue, Flag
from plow.packet.codec import Packet, decode
from plow.packet.container import PacketFile, ProgramRecord


def line(p: Packet, nodes: list[str]) -> str:
    """`seq worker opcode.epilogue+flags node | waits -> signals | operands | dims | imms`"""
    name = p.opcode.name + (f".{p.epilogue.name}" if p.epilogue != Epilogue.STORE else "")
    flags = "".join(f"+{f.name}" for f in Flag if f in p.flags)
    rows = "" if p.domain == Domain.ROWS else "@samples"
    waits = " ".join(f"c{c}>={t}" for c, t in p.waits) or "-"
    signals = " ".join(f"c{c}" for c in p.signals) or "-"
    operands = " ".join(f"{k}={v:#x}" for k, v in p.operands.items())
    dims = " ".join(f"{k}={v}" for k, v in p.dims.items())
    imms = " ".join(f"{k}={v:.8g}" for k, v in p.imms.items() if v)
    node = nodes[p.node] if p.node < len(nodes) else "?"
    head = f"{p.seq:5d} w{p.worker} {name}{flags}{rows} {node}"
    return " | ".join(x for x in (head, f"{waits} -> {signals}", operands, dims, imms) if x)


def program_lines(program: ProgramRecord, nodes: list[str]) -> Iterator[str]:
    yield (
        f"; program T={program.rows} S={program.samples}: {program.num_packets} packets, "
        f"{program.num_counters} counters, {len(program.lists)} workers"
    )
    for record in program.by_seq():
        yield line(decode(record), nodes)


def disassemble(file: PacketFile, rows: int | None = None) -> Iterator[str]:
    """All programs, or the one with T = rows."""
    for program in file.programs:
        if rows is None or program.rows == rows:
            yield from program_lines(program, file.nodes)

"""Encoder and decoder of single packets: named fields <-> the 128-byte record."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from plow.errors import PacketError
from plow.packet.abi import (
    ALIGN,
    NO_COUNTER,
    NO_FLAGS,
    NO_OPERAND,
    NUM_SIGNALS,
    NUM_WAITS,
    OPCODES,
    PACKET,
    Domain,
    Epilogue,
    Flag,
    Opcode,
    OpcodeSpec,
)


@dataclass
class Packet:
    """A packet with names. operands: arena byte offsets; waits: (counter, threshold); signals: counters."""

    opcode: Opcode
    operands: dict[str, int] = field(default_factory=dict)
    dims: dict[str, int] = field(default_factory=dict)
    imms: dict[str, float] = field(default_factory=dict)
    flags: Flag = NO_FLAGS
    epilogue: Epilogue = Epilogue.STORE
    domain: Domain = Domain.ROWS
    worker: int = 0
    seq: int = 0
    node: int = 0
    waits: list[tuple[int, int]] = field(default_factory=list)
    signals: list[int] = field(default_factory=list)


def encode(packets: list[Packet]) -> np.ndarray:
    """PACKET[len(packets)]. Raises PacketError when a field does not fit the record."""
    out = np.zeros(len(packets), PACKET)
    for i, p in enumerate(packets):
        _encode(p, out[i])
    return out


def _encode(p: Packet, r: np.void) -> None:
    spec = OPCODES[p.opcode]
    where = f"packet {p.seq} {p.opcode.name}"
    if len(p.waits) > NUM_WAITS or len(p.signals) > NUM_SIGNALS:
        raise PacketError(
            f"{len(p.waits)} waits and {len(p.signals)} signals do not fit {NUM_WAITS} and {NUM_SIGNALS}", where
        )
    r["opcode"], r["flags"], r["worker"], r["domain"] = p.opcode, p.flags, _u16(p.worker, "worker", where), p.domain
    r["seq"], r["node"], r["epilogue"] = p.seq, p.node, p.epilogue
    r["waits"]["counter"] = NO_COUNTER
    r["signals"] = NO_COUNTER
    for i, (counter, threshold) in enumerate(p.waits):
        r["waits"][i] = (_u16(counter, "counter", where), _u16(threshold, "threshold", where))
    for i, counter in enumerate(p.signals):
        r["signals"][i] = _u16(counter, "counter", where)
    r["operands"] = NO_OPERAND
    for name, value in p.operands.items():
        if value % ALIGN or not 0 <= value // ALIGN < NO_OPERAND:
            raise PacketError(f"operand {name} at {value} is not a multiple of {ALIGN} within the arena", where)
        r["operands"][_index(spec.operands, name, where)] = value // ALIGN
    for name, value in p.dims.items():
        if not 0 <= value < 1 << 32:
            raise PacketError(f"dim {name}={value} is no u32", where)
        r["dims"][_index(spec.dims, name, where)] = value
    for name, number in p.imms.items():
        r["imms"][_index(spec.imms, name, where)] = number


def _u16(value: int, name: str, where: str) -> int:
    if not 0 <= value < NO_COUNTER:
        raise PacketError(f"{name} {value} does not fit 16 bits", where, "use fewer counters or workers")
    return value


def _index(names: dict, name: str, where: str) -> int:
    if name not in names:
        raise PacketError(f"no field {name!r}", where, f"known: {', '.join(names)}")
    return list(names).index(name)


def decode(record: np.void) -> Packet:
    """The named form of one record. Raises PacketError for an unknown opcode, flag, epilogue, domain or a non-zero
    reserved field; `encode([decode(r)])` gives the same bytes."""
    code = int(record["opcode"])
    if code not in Opcode.__members__.values():
        raise PacketError(f"unknown opcode {code}", f"packet {int(record['seq'])}")
    op = Opcode(code)
    spec = OPCODES[op]
    where = f"packet {int(record['seq'])} {op.name}"
    flags, epilogue, domain = int(record["flags"]), int(record["epilogue"]), int(record["domain"])
    if flags & ~int(spec.flags):
        raise PacketError(f"flags {flags:#x} are not defined for the opcode", where)
    if epilogue != Epilogue.STORE and epilogue not in [int(e) for e in spec.epilogues]:
        raise PacketError(f"epilogue {epilogue} is not defined for the opcode", where)
    if domain not in [int(d) for d in Domain] or int(record["reserved"]):
        raise PacketError("domain or reserved field is not valid", where)
    _check_unused(record, spec, where)
    return Packet(
        opcode=op,
        operands={
            n: int(v) * ALIGN for n, v in zip(spec.operands, record["operands"], strict=False) if v != NO_OPERAND
        },
        dims={n: int(v) for n, v in zip(spec.dims, record["dims"], strict=False)},
        imms={n: float(v) for n, v in zip(spec.imms, record["imms"], strict=False)},
        flags=Flag(flags),
        epilogue=Epilogue(epilogue),
        domain=Domain(domain),
        worker=int(record["worker"]),
        seq=int(record["seq"]),
        node=int(record["node"]),
        waits=[(int(c), int(t)) for c, t in record["waits"] if c != NO_COUNTER],
        signals=[int(c) for c in record["signals"] if c != NO_COUNTER],
    )


def _check_unused(record: np.void, spec: OpcodeSpec, where: str) -> None:
    """Fields beyond the opcode's names must hold their neutral value, so that every byte means something, and used
    slots come first: an interpreter stops at the first unused one."""
    for slots in (record["waits"]["counter"], record["signals"]):
        used = slots != NO_COUNTER
        if (used[1:] & ~used[:-1]).any():
            raise PacketError("a wait or signal stands behind an unused slot", where)
    if record["waits"]["threshold"][record["waits"]["counter"] == NO_COUNTER].any():
        raise PacketError("an unused wait has a threshold", where)
    unused = (record["operands"][len(spec.operands) :] != NO_OPERAND).any() or record["dims"][len(spec.dims) :].any()
    if unused or record["imms"][len(spec.imms) :].view(np.uint32).any():
        raise PacketError("a field that the opcode does not use is set", where)

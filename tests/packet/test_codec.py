"""The record, the container and the generated header."""

import ctypes
import subprocess

import numpy as np
import pytest

from plow.errors import PacketError
from plow.packet import abi, container
from plow.packet.abi import OPCODES, PACKET, Domain, Epilogue, Flag, Opcode
from plow.packet.cheader import header
from plow.packet.codec import Packet, decode, encode
from plow.packet.disasm import disassemble


def full_packet(op: Opcode, worker: int = 0) -> Packet:
    """A packet with every field of its opcode set to a distinct value."""
    s = OPCODES[op]
    return Packet(
        op,
        {n: 64 * (i + 1) for i, n in enumerate(s.operands)},
        {n: i + 1 for i, n in enumerate(s.dims)},
        {n: 0.5 + i for i, n in enumerate(s.imms)},
        s.flags,
        s.epilogues[-1] if s.epilogues else Epilogue.STORE,
        Domain.SAMPLES,
        worker,
        7,
        3,
        [(1, 2), (0, 1)],
        [1, 0],
    )


@pytest.mark.parametrize("op", list(Opcode))
def test_a_packet_survives_encoding(op):
    p = full_packet(op)
    assert decode(encode([p])[0]) == p


@pytest.mark.parametrize("op", list(Opcode))
def test_decoding_and_encoding_give_the_same_bytes(op):
    raw = encode([full_packet(op)])
    assert encode([decode(raw[0])]).tobytes() == raw.tobytes()


def test_every_opcode_fits_the_record():
    for op, s in OPCODES.items():
        assert len(s.operands) <= abi.NUM_OPERANDS and len(s.dims) <= abi.NUM_DIMS and len(s.imms) <= abi.NUM_IMMS, op


@pytest.mark.parametrize(
    "field, value", [("opcode", 99), ("flags", 0x8000), ("epilogue", 77), ("domain", 9), ("reserved", 1)]
)
def test_an_undefined_field_value_is_a_typed_error(field, value):
    raw = encode([full_packet(Opcode.LINEAR)])
    raw[0][field] = value
    with pytest.raises(PacketError):
        decode(raw[0])


def test_a_set_field_that_the_opcode_does_not_use_is_a_typed_error():
    raw = encode([full_packet(Opcode.SAMPLE)])
    raw[0]["dims"][11] = 5
    with pytest.raises(PacketError, match="does not use"):
        decode(raw[0])


def test_a_wait_behind_an_unused_slot_is_a_typed_error():
    raw = encode([full_packet(Opcode.NOP)])
    raw[0]["waits"][0]["counter"] = abi.NO_COUNTER
    with pytest.raises(PacketError, match="unused slot"):
        decode(raw[0])


@pytest.mark.parametrize(
    "bad",
    [
        Packet(Opcode.NOP, waits=[(i, 1) for i in range(5)]),
        Packet(Opcode.EMBED, {"table": 65}),
        Packet(Opcode.EMBED, {"nope": 64}),
        Packet(Opcode.EMBED, dims={"width": -1}),
        Packet(Opcode.NOP, signals=[70000]),
    ],
)
def test_a_field_that_does_not_fit_is_a_typed_error(bad):
    with pytest.raises(PacketError):
        encode([bad])


def small_file() -> container.PacketFile:
    a = Packet(Opcode.NOP, worker=0, seq=0, waits=[(0, 2)], signals=[1, 0])
    b = Packet(Opcode.NOP, worker=1, seq=1, waits=[(0, 2), (1, 1)], signals=[0])
    program = container.ProgramRecord(1, 1, [2, 1], [encode([a]), encode([b])], 0, 16)
    return container.PacketFile({"nodes": ["only"], "target": "cpu"}, [program])


def test_a_container_survives_saving():
    again = container.loads(container.dumps(small_file()))
    assert again.header["target"] == "cpu" and again.programs[0].counter_totals == [2, 1]
    assert [x.tobytes() for x in again.programs[0].lists] == [x.tobytes() for x in small_file().programs[0].lists]
    assert len(list(disassemble(again))) == 3


def test_every_flipped_byte_of_a_container_is_found():
    blob = container.dumps(small_file())
    for i in range(len(blob)):
        broken = bytearray(blob)
        broken[i] ^= 0x10
        with pytest.raises(PacketError):
            container.loads(bytes(broken))


@pytest.mark.parametrize("cut", [0, 7, 40, -1])
def test_a_truncated_container_is_a_typed_error(cut):
    with pytest.raises(PacketError):
        container.loads(container.dumps(small_file())[:cut])


def test_a_list_with_a_foreign_packet_or_wrong_totals_is_a_typed_error():
    swapped = small_file()
    swapped.programs[0].lists.reverse()
    with pytest.raises(PacketError, match="names worker"):
        container.loads(container.dumps(swapped))
    wrong = small_file()
    wrong.programs[0].counter_totals = [2, 2]
    with pytest.raises(PacketError, match="totals"):
        container.loads(container.dumps(wrong))


def test_the_c_header_has_the_layout_of_the_numpy_record(tmp_path):
    """offsetof of every struct member, as the C compiler sees it, equals numpy's."""
    fields = list(PACKET.names)
    prints = "".join(f"out[{i}] = offsetof(plow_packet, {f});" for i, f in enumerate(fields))
    body = f"void offsets(int *out) {{ {prints} }}\nint last_dim(void) {{ return LINEAR_D_RESIDUAL_STRIDE; }}"
    source = f"{header()}\n#include <stddef.h>\n{body}"
    (tmp_path / "t.c").write_text(source)
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-std=gnu11", "-Wall", "-Werror", "-o", tmp_path / "t.so", tmp_path / "t.c"],
        check=True,
    )
    lib = ctypes.CDLL(str(tmp_path / "t.so"))
    out = (ctypes.c_int * len(fields))()
    lib.offsets(out)
    assert list(out) == [PACKET.fields[f][1] for f in fields]
    assert lib.last_dim() == list(OPCODES[Opcode.LINEAR].dims).index("residual_stride")


def test_flags_of_opcodes_are_known():
    assert all(np.uint16(s.flags) < 1 << 8 for s in OPCODES.values()) and Flag.NORM in OPCODES[Opcode.LINEAR].flags

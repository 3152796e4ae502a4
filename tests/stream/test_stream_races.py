"""A wrong program is found: late values, values written twice, values of other workers, early re-arming."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from stream_rig import TOKENS, step

from plow.errors import StuckDependency
from plow.packet.abi import STEP_COUNTER, Opcode
from plow.packet.codec import Packet
from plow.runtime.numpy_published import Race, StreamState
from plow.runtime.numpy_vm import NumpyBackend
from plow.runtime.step import StepBatch


@pytest.fixture
def vm(bundle: Callable) -> NumpyBackend:
    return NumpyBackend(bundle("gemma3"))


def find(vm: NumpyBackend, opcode: Opcode, operand: str = "", program: int = 0) -> Packet:
    """The first packet of an opcode (with an operand)."""
    every = [p for packets in vm._program(program).lists for p in packets]
    return next(p for p in every if p.opcode == opcode and (not operand or operand in p.operands))


def run(vm: NumpyBackend, n_steps: int = 1) -> np.ndarray:
    return step(vm, TOKENS[:1], [0], [0], n_steps=n_steps)[0]


@pytest.mark.parametrize(("opcode", "operand", "polled"), [
    (Opcode.STREAM_LINEAR, "y", "qkv"), (Opcode.STREAM_EMBED, "", "x"), (Opcode.STREAM_NORM, "next_ssq", "x"),
    (Opcode.STREAM_ATTENTION, "", "x"), (Opcode.STREAM_HEAD, "", "keys"),
])  # fmt: skip
def test_a_value_that_is_never_written_names_who_waits_and_for_what(vm, opcode, operand, polled):
    good = run(vm).tolist()
    packet = find(vm, opcode, operand)
    packet.waits, waits = [(STEP_COUNTER, 1000)], packet.waits
    with pytest.raises(StuckDependency) as e:
        run(vm)
    assert f"worker {packet.worker} packet {packet.seq} {opcode.name}" in e.value.where, "the cause, not a consequence"
    packets = vm._program(0).lists[packet.worker]
    packet.waits = waits
    assert run(vm).tolist() == good, "the next step is right"
    place = packets.index(packet)
    del packets[place]
    with pytest.raises(StuckDependency, match=f"{polled} is not written"):
        run(vm)
    packets.insert(place, packet)
    assert run(vm).tolist() == good


def test_a_value_that_is_written_twice_is_found(vm):
    packet = find(vm, Opcode.STREAM_LINEAR, "y")
    vm._program(0).lists[packet.worker].insert(2, packet)
    with pytest.raises(Race, match="written twice"):
        run(vm)


def test_a_state_of_another_worker_is_found(vm):
    packet = find(vm, Opcode.STREAM_NORM)
    lists = vm._program(0).lists
    at = lists[packet.worker].index(packet)
    other = (packet.worker + 1) % len(lists)
    place = next(i for i, p in enumerate(lists[other]) if p.node > packet.node)
    lists[other].insert(place, lists[packet.worker].pop(at))
    packet.worker = other
    with pytest.raises(Race, match=r"not written by this worker|another worker"):
        run(vm)


def test_a_value_that_was_not_re_armed_is_found(vm, monkeypatch):
    good = StreamState.put

    def forgetful(self, p, operand, shape, index, values, active):
        other = self.published(p, operand, values.dtype.type, *shape, other=True)
        old = other[index].copy()
        good(self, p, operand, shape, index, values, active)
        if p.opcode == Opcode.STREAM_NORM:
            other[index] = old

    monkeypatch.setattr(StreamState, "put", forgetful)
    run(vm, n_steps=2)
    with pytest.raises(Race, match="not re-armed"):
        run(vm, n_steps=3)


def test_a_token_that_is_re_armed_before_it_is_read_is_found(vm):
    """SAMPLE of a step re-arms the token of the step before, so it must follow every EMBED."""
    packet = find(vm, Opcode.STREAM_SAMPLE)
    state = StreamState(
        vm.arena, vm.bundle.limits, StepBatch.greedy([1], [0], [0], [0], np.zeros((1, 1))), np.zeros(1, np.int32),
        copy_bytes=vm.bundle.packets.header["published_bytes"], plain=vm.bundle.segments["activations"], first=False)
    embed = vm._program(0).lists[0][0]
    assert embed.opcode == Opcode.STREAM_EMBED
    start, size = vm.bundle.segments["published"]
    vm.arena[start : start + size] = 0xFF
    state.reads_other([embed], "tokens")
    token = np.array([3], np.uint32)
    with pytest.raises(Race, match="re-armed while"):
        state.put(packet, "tokens", (1,), slice(0, 1), token, True)
    state.ended(embed)
    state.put(packet, "tokens", (1,), slice(0, 1), token, True)


def test_columns_without_a_row_stay_unwritten_and_every_word_is_re_armed(bundle):
    vm = NumpyBackend(bundle("llama"))
    step(vm, TOKENS[:3], [0, 0, 0], [0, 1, 2], rows=8, n_steps=2)
    index = next(i for i, p in enumerate(vm.bundle.packets.programs) if p.rows == 8)
    start, copy = vm.bundle.segments["published"][0], vm.bundle.packets.header["published_bytes"]
    whole = vm.arena[start : start + 2 * copy].view(np.uint32).reshape(2, -1)
    last = vm._program(index).step & 1
    linear = next(p for p in vm._program(index).lists[0] if p.opcode == Opcode.STREAM_LINEAR)
    words = (linear.operands["x"] - start) // 4 + np.arange(linear.dims["k"] // 32 * 8 * 16)
    now, before = (whole[i][words].reshape(-1, 8, 16) for i in (last, 1 - last))
    unwritten = np.uint32(0xFFFFFFFF)
    assert (now[:, :3] != unwritten).all() and (now[:, 3:] == unwritten).all() and (before == unwritten).all()

"""Residence on a GPU: the sampler, leaving and coming back, several models, and a missing packet."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest
from test_device import LENGTHS, Device, device  # noqa: F401  # the fixture

from plow.errors import StuckDependency
from plow.packet.abi import Opcode
from plow.runtime import cuda_resident
from plow.runtime.cuda import CudaBackend
from plow.runtime.cuda_device import DeviceError
from plow.runtime.sampler import sample
from plow.runtime.step import StepBatch

pytestmark = pytest.mark.gpu

PARAMETERS = [
    {"temperature": 1.0},
    {"temperature": 0.7, "top_k": 5},
    {"temperature": 1.5, "top_p": 0.8},
    {"temperature": 0.3, "min_p": 0.2},
    {"temperature": 2.0, "top_k": 40, "top_p": 0.95, "min_p": 0.05},
    {"temperature": 100.0},
    {"temperature": 0.01},
    {"temperature": 1.0, "top_k": 1},
    {"temperature": 100.0, "top_p": 0.5, "top_k": 200},
]


def set_parameters(batch: StepBatch, row: int, how: dict[str, float], seed: int) -> None:
    for name, value in how.items():
        getattr(batch, name)[row] = value
    batch.seed[row] = seed


def reference(batch: StepBatch, row: int, logits: np.ndarray) -> int:
    how = (getattr(batch, n)[row].item() for n in ("temperature", "top_k", "top_p", "min_p", "seed"))
    return sample(logits, *how, int(batch.positions[row]))


def test_the_sampler_takes_what_the_reference_takes(device: Device) -> None:  # noqa: F811
    """Eight rows with parameters of their own, many seeds. A sum of masses in fp32 may fall on the other side of a
    boundary, which is rare."""
    for s in range(8):
        device.fill(s, LENGTHS[s])
    batch = device.batch([(s, LENGTHS[s]) for s in range(8)], list(range(8)))
    index, differing, seen = device.programs[8], 0, set()
    for turn in range(40):
        for row in range(8):
            set_parameters(batch, row, {"temperature": 0, "top_k": 0, "top_p": 1, "min_p": 0}, 0)
            if row != turn % 8:  # one stays greedy
                set_parameters(batch, row, PARAMETERS[(row + turn) % len(PARAMETERS)], 1000 * turn + row)
        found = device.backend.run(index, batch)[0]
        again = device.backend.run(index, batch)[0]
        assert found.tolist() == again.tolist(), "a seed repeats its token"
        logits = device.backend.logits(index, 8)
        differing += sum(int(found[r]) != reference(batch, r, logits[r]) for r in range(8))
        seen.update(found.tolist())
    assert differing <= 1 and len(seen) > 30, f"{differing} of 320 differ"


@pytest.mark.parametrize("program", [1, 8])
def test_sampled_steps_on_the_device_equal_single_ones(device: Device, program: int) -> None:  # noqa: F811
    for s in range(program):
        device.fill(s, 13)
    index = device.programs[program]
    batch = device.batch([(s, 13) for s in range(program)], list(range(program)))
    for row in range(program):
        set_parameters(batch, row, PARAMETERS[row % 5], 7 + row)
    together, now, singles = device.backend.run(index, batch, 7), batch, []
    for e in range(7):
        singles.append(device.backend.run(index, now)[0].tolist())
        now = replace(batch, tokens=np.array(singles[-1], np.int32), positions=batch.positions + np.int32(e + 1))
    assert together.tolist() == singles


def test_rows_come_and_go_between_steps(device: Device) -> None:  # noqa: F811
    """A row that a step leaves out must not leave words behind that a later step takes for its own."""
    for s in range(8):
        device.fill(s, LENGTHS[s])
    alone = [device.run(8, [(s, LENGTHS[s])])[0].view(np.uint32).copy() for s in range(8)]
    for n in (8, 3, 8, 1, 5, 8, 8, 2, 7, 8):
        found = device.run(8, [(s, LENGTHS[s]) for s in range(n)])
        assert all(np.array_equal(found[s].view(np.uint32), alone[s]) for s in range(n)), n


def test_it_leaves_when_idle_and_returns(device: Device) -> None:  # noqa: F811
    resident = device.backend.resident
    device.run(1, [(0, 0)])
    launches = resident.launches
    for p in range(1, 6):
        device.run(1, [(0, p)])
    assert resident.launches <= launches + 1, "calls that follow each other share a launch"
    time.sleep(3e-6 * cuda_resident.IDLE_US)
    assert resident._has_left()
    device.run(1, [(0, 6)])
    assert resident.launches > launches


def test_two_backends_take_turns_on_one_kernel(device: Device) -> None:  # noqa: F811
    other = CudaBackend(device.bundle)
    try:
        assert other.resident is device.backend.resident
        rows = [(0, p) for p in range(20)]
        apart = [device.run(1, [row]) for row in rows]
        launches, mine = other.resident.launches, device.backend
        for row, expected in zip(rows, apart, strict=True):
            found = device.run(1, [row])
            device.backend = other
            beside = device.run(1, [row])
            device.backend = mine
            assert np.array_equal(found.view(np.uint32), expected.view(np.uint32))
            assert np.array_equal(beside.view(np.uint32), expected.view(np.uint32))
        assert other.resident.launches <= launches + 2
    finally:
        other.close()


def rename(device: Device, program: int, old: Opcode, new: Opcode) -> tuple[int, int]:  # noqa: F811
    """Change the opcode of the first packet of a kind in the lists on the device: (worker, seq). A NOP only signals."""
    record = device.bundle.packets.programs[program]
    for worker, packets in enumerate(record.lists):
        for i, p in enumerate(packets):
            if p["opcode"] == old:
                at = (worker * device.backend._programs[program].max_packets + i) * p.itemsize
                device.backend.resident.leave()
                device.backend._programs[program].packets[at : at + 2].set(np.array([new], "<u2").view(np.uint8))
                return worker, int(p["seq"])
    raise AssertionError(f"no {old!r}")


PRODUCERS = (Opcode.STREAM_EMBED, Opcode.STREAM_LINEAR, Opcode.STREAM_ATTENTION, Opcode.STREAM_HEAD)


@pytest.mark.parametrize("opcode", PRODUCERS, ids=lambda o: o.name)
def test_a_missing_packet_is_named_within_two_seconds_and_life_goes_on(device: Device, opcode: Opcode) -> None:  # noqa: F811
    before = device.run(1, [(0, 0)]).view(np.uint32).copy()
    index = device.programs[1]
    worker, seq = rename(device, index, opcode, Opcode.NOP)
    start = time.perf_counter()
    with pytest.raises(StuckDependency) as e:
        device.backend.run(index, device.batch([(0, 0)], [0]))
    took = time.perf_counter() - start
    print(f"{opcode.name}: {took:.2f} s, {e.value.line()}")
    assert took < 2, e.value.line()
    assert f"packet {seq} " in e.value.line() and f"worker {worker} " in e.value.line()
    with pytest.raises(DeviceError, match="runs nothing any more"):
        device.backend.run(index, device.batch([(0, 0)], [0]))
    rename(device, index, opcode, opcode)
    assert device.backend.recover()
    assert np.array_equal(device.run(1, [(0, 0)]).view(np.uint32), before)

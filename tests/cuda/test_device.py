"""The interpreter on a GPU. Needs neither compilers nor other fixtures where PLOW_DEVICE_BUNDLES names a folder that
device_bundles.py has filled; without it the bundles are built here."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import device_bundles
import numpy as np
import pytest
from device_bundles import LENGTH, MODELS, relative

from plow.runtime import bundle as bundles
from plow.runtime.cuda import CudaBackend
from plow.runtime.kv import BlockManager
from plow.runtime.numpy_stream import SPLIT_PAGES
from plow.runtime.numpy_vm import NumpyBackend
from plow.runtime.step import StepBatch

pytestmark = pytest.mark.gpu

REPEATS = 20
SLACK = 2.0
"""Errors may be this many times what rounding to bf16 does in the numpy interpreter, in the mean and at most: the
kernel rounds at other places and adds in another order."""
SAME_PACKETS = 2e-2
"""Of the numpy interpreter of the same packets, which rounds where the kernel does: sums in another order flip single
roundings to bf16 (measured: at most 7e-3)."""


class Device:
    """A backend with the reference of its model. slots: one a sequence, with room for all of its positions."""

    def __init__(self, path: Path) -> None:
        self.bundle = bundles.load(path, allow_uncertified=True)
        self.backend = CudaBackend(self.bundle)
        self.split_pages = 1 if path.name == "llama-splits" else SPLIT_PAGES
        known = np.load(path.with_name(path.name + ".npz"))
        self.tokens, self.expected, self.noise = known["tokens"], known["logits"], known["noise"]
        self.programs = {p.rows: i for i, p in enumerate(self.bundle.packets.programs)}
        self.kv = BlockManager(self.bundle.limits)
        self.slots = [self.kv.allocate(LENGTH + 8) for _ in range(len(self.tokens))]

    def batch(self, rows: list[tuple[int, int]], sampled: list[int]) -> StepBatch:
        """rows: (sequence, position)."""
        tokens = [int(self.tokens[s, p]) for s, p in rows]
        slots = [self.slots[s] for s, _ in rows]
        return StepBatch.greedy(tokens, [p for _, p in rows], slots, sampled, self.kv.page_table)

    def run(self, program: int, rows: list[tuple[int, int]]) -> np.ndarray:
        """Logits of all rows, which the sampled tokens agree with."""
        index, batch = self.programs[program], self.batch(rows, list(range(len(rows))))
        picked = self.backend.run(index, batch)
        logits = self.backend.logits(index, len(rows)).copy()
        assert np.isfinite(logits).all() and picked[0].tolist() == logits.argmax(axis=1).tolist()
        return logits

    def fill(self, sequence: int, end: int) -> None:
        """Compute positions 0..end of a sequence, in chunks."""
        for p in range(0, end, 8):
            self.run(8, [(sequence, q) for q in range(p, min(p + 8, end))])

    def judge(self, found: list[np.ndarray], rows: list[tuple[int, int]]) -> None:
        """found: logits of the rows. Each within the noise of bf16."""
        sequences, positions = np.array(rows).T
        errors = relative(np.concatenate(found), self.expected[sequences, positions])
        worst = rows[int(errors.argmax())]
        assert errors.mean() <= SLACK * self.noise.mean(), f"mean {errors.mean():.4f}, noise {self.noise.mean():.4f}"
        assert errors.max() <= SLACK * self.noise.max(), f"{worst}: {errors.max():.4f}, noise {self.noise.max():.4f}"


@pytest.fixture(scope="module", params=list(MODELS))
def device(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Device]:
    made = os.environ.get("PLOW_DEVICE_BUNDLES")
    folder = Path(made) if made else tmp_path_factory.mktemp("device")
    if not made:
        device_bundles.build(folder, (request.param,))
    opened = Device(folder / request.param)
    yield opened
    opened.backend.close()


def test_token_by_token_over_page_edges(device: Device) -> None:
    rows = [(0, p) for p in range(LENGTH)]
    device.judge([device.run(1, [row]) for row in rows], rows)


@pytest.mark.parametrize("first", [8, 3, 1])
def test_chunks_of_eight_wherever_they_start(device: Device, first: int) -> None:
    """first: length of the first chunk; with 3 and 1 the later ones cross page edges."""
    edges = [0, *range(first, LENGTH, 8), LENGTH]
    chunks = [[(1, p) for p in range(a, b)] for a, b in pairwise(edges)]
    device.judge([device.run(8, chunk) for chunk in chunks], [row for chunk in chunks for row in chunk])


LENGTHS = (40, 1, 17, 32, 16, 15, 8, 31)
"""Cached positions of the sequences: around page edges, and next to nothing."""


@pytest.mark.parametrize("program", [2, 4, 8])
def test_sequences_of_any_lengths_decode_together(device: Device, program: int) -> None:
    found, rows = [], []
    for s in range(program):
        device.fill(s, LENGTHS[s])
    for step in range(6):
        now = [(s, LENGTHS[s] + step) for s in range(program)]
        found.append(device.run(program, now))
        rows += now
    device.judge(found, rows)


def test_a_prompt_chunk_and_decode_rows_share_a_step(device: Device) -> None:
    device.fill(0, 20)
    device.fill(1, 33)
    rows = [(0, 20), (1, 33), *((2, p) for p in range(6))]
    device.judge([device.run(8, rows)], rows)
    following = [(0, 21), (1, 34), *((2, p) for p in range(6, 12))]
    device.judge([device.run(8, following)], following)


def test_fewer_rows_than_the_program_has(device: Device) -> None:
    rows = [(3, p) for p in range(16)]
    device.judge([device.run(4, [row]) for row in rows], rows)


def test_batch_mates_change_no_bit(device: Device) -> None:
    for s in range(8):
        device.fill(s, LENGTHS[s])
    together = device.run(8, [(s, LENGTHS[s]) for s in range(8)])
    for s in range(8):
        assert np.array_equal(device.run(8, [(s, LENGTHS[s])])[0].view(np.uint32), together[s].view(np.uint32))


def test_a_step_has_the_same_bits_every_time(device: Device) -> None:
    for s in range(8):
        device.fill(s, LENGTHS[s])
    for program in (1, 8):
        rows = [(s, LENGTHS[s]) for s in range(program)]
        first = device.run(program, rows).view(np.uint32)
        differing = sum(not np.array_equal(device.run(program, rows).view(np.uint32), first) for _ in range(REPEATS))
        assert differing == 0, f"{differing} of {REPEATS} repeats differ"


@pytest.mark.parametrize("program", [1, 8])
def test_several_steps_in_one_launch_equal_single_steps(device: Device, program: int) -> None:
    """From position 13 over the edge of a page; the tokens go round on the device."""
    for s in range(program):
        device.fill(s, 13)
    index, rows = device.programs[program], list(range(program))
    batch = device.batch([(s, 13) for s in rows], rows)
    together = device.backend.run(index, batch, 7)
    last = device.backend.logits(index, program).copy()
    tokens, singles = batch.tokens, []
    for e in range(7):
        step = StepBatch.greedy(tokens, batch.positions + np.int32(e), batch.slots, rows, batch.page_table)
        tokens = device.backend.run(index, step)[0]
        singles.append(tokens.tolist())
    assert together.tolist() == singles
    assert np.array_equal(device.backend.logits(index, program).view(np.uint32), last.view(np.uint32))


def test_the_numpy_interpreter_of_the_same_packets_agrees(device: Device) -> None:
    """Row by row: single steps and chunks over page edges, then sequences of several lengths together."""
    oracle = NumpyBackend(device.bundle, split_pages=device.split_pages)
    steps = [(1, [(0, p)]) for p in range(18)]
    steps += [(8, [(1, p) for p in range(a, min(a + 8, 35))]) for a in range(0, 35, 8)]
    steps += [(4, [(2, p) for p in range(4)]), (2, [(2, 4), (2, 5)])]
    steps += [(8, [(0, 18 + e), (1, 35 + e), (2, 6 + e), (3, e)]) for e in range(3)]
    for program, rows in steps:
        index = device.programs[program]
        found = device.run(program, rows)
        oracle.run(index, device.batch(rows, list(range(len(rows)))))
        errors = relative(found, oracle.logits(index, len(rows)))
        assert errors.max() < SAME_PACKETS, f"T={program} {rows[int(errors.argmax())]}: {errors.max():.4f}"

"""The step loop: waits, signals, step borders, wrapping counters, and what happens when a producer never signals."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from rig import Lib, Rig, Rng, step

from plow.packet.abi import NO_COUNTER, STEP_COUNTER, Domain, Epilogue, Opcode
from plow.packet.codec import Packet
from plow.runtime.cpu_lib import RUN_BAD_OPCODE, RUN_OK, RUN_STUCK, StepBuffers, open_library

WIDTH = 64


def scale(x: int, y: int, worker: int, factor: float = 2.0, **links: list) -> Packet:
    dims = {"row0": 0, "row1": 1, "row_step": 1, "width": WIDTH, "a_stride": WIDTH, "y_stride": WIDTH}
    return Packet(Opcode.ELEMENTWISE, {"a": x, "y": y}, dims, {"factor": factor}, epilogue=Epilogue.SCALE,
                  worker=worker, **links)


class Relay:
    """A value is doubled by worker 0, then 1, then 2 ... and comes back: every step multiplies x by 2^workers."""

    def __init__(self, lib: Lib, workers: int = 3) -> None:
        self.rig = Rig(lib, workers=workers)
        self.x = [self.rig.put(np.ones(WIDTH, np.float32)) for _ in range(workers + 1)]
        packets = [scale(self.x[w], self.x[w + 1], w, waits=[(STEP_COUNTER, workers)] + ([(w, 1)] if w else []),
                         signals=[w + 1] if w + 1 < workers else []) for w in range(workers)]
        packets.append(scale(self.x[workers], self.x[0], workers - 1, factor=1.0, signals=[STEP_COUNTER]))
        packets += [Packet(Opcode.NOP, worker=w, signals=[STEP_COUNTER]) for w in range(workers - 1)]
        self.program = self.rig.program(packets, totals=[workers] + [1] * (workers - 1))
        self.interpreter = self.rig.interpreter(self.program)
        self.buffers, self.picked = StepBuffers(1, 1, 1), np.zeros((100, 1), np.int32)

    def run(self, steps: int = 1) -> int:
        return self.interpreter.run(self.program, self.buffers.fill(step(1), steps, self.picked))

    def value(self) -> float:
        values = self.rig.view(self.x[0], 1, WIDTH)
        assert (values == values[0, 0]).all()
        return float(values[0, 0])


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_workers_hand_values_on_through_counters(lib: Lib, workers: int) -> None:
    relay = Relay(lib, workers)
    for steps in (1, 1, 5, 10):
        before = relay.value()
        assert relay.run(steps) == RUN_OK and relay.value() == before * 2.0 ** (workers * steps)


@pytest.mark.parametrize(("waits", "value"), [(True, 1.0), (False, 2.0)])
def test_only_its_wait_keeps_a_consumer_from_running_early(widest: Path, waits: bool, value: float) -> None:
    """Worker 0 never runs. With its wait worker 1 writes nothing; without it, it doubles what it finds."""
    relay = Relay(open_library(widest), 2)
    if not waits:
        relay.program.lists[1]["waits"]["counter"][0, 1] = NO_COUNTER
    relay.interpreter.configure(timeout_s=0.05, fault_seq=0)
    assert relay.run() == RUN_STUCK and relay.value() == value


def test_counters_wrap_around(lib: Lib) -> None:
    relay = Relay(lib, 3)
    finished = (1 << 32) - 3
    relay.program.struct.epoch = finished
    for counter, total in enumerate([3, 1, 1]):
        relay.program.counters[counter, 0] = finished * total % (1 << 32)
    for i in range(1, 8):
        assert relay.run() == RUN_OK and relay.value() == 8.0**i
    assert relay.program.struct.epoch == 4


def test_a_producer_that_never_signals_is_reported_and_the_next_run_is_good(lib: Lib) -> None:
    relay = Relay(lib, 3)
    assert relay.run(2) == RUN_OK
    relay.interpreter.configure(timeout_s=0.05, fault_seq=1)
    assert relay.run() == RUN_STUCK
    r = relay.interpreter.report
    assert (r.worker, r.counter, r.have, r.want) == (2, 2, 2, 3), "worker 2 waits for worker 1's counter of step 3"
    assert r.at[:3] == [2, 0, 0], "worker 0 is through, the others stand before their first packet"
    assert not relay.program.counters.any() and relay.program.struct.epoch == 0
    relay.interpreter.configure()
    relay.rig.view(relay.x[0], 1, WIDTH)[:] = 1.0
    assert relay.run(3) == RUN_OK and relay.value() == 8.0**3


def test_an_unknown_opcode_ends_the_run(lib: Lib) -> None:
    relay = Relay(lib, 2)
    relay.program.lists[1]["opcode"][0] = 99
    assert relay.run() == RUN_BAD_OPCODE and relay.interpreter.report.worker == 1
    relay.program.lists[1]["opcode"][0] = Opcode.ELEMENTWISE
    assert relay.run() == RUN_OK


def test_idle_workers_sleep_and_wake_for_the_next_run(lib: Lib) -> None:
    relay = Relay(lib, 2)
    for _ in range(3):
        assert relay.run() == RUN_OK
        relay.interpreter.configure()
        np.linalg.inv(np.eye(200))  # longer than the idle spin
    assert relay.value() == 4.0**3


def test_programs_with_fewer_workers_run_on_the_same_threads(lib: Lib) -> None:
    relay = Relay(lib, 3)
    y = relay.rig.put(np.zeros(WIDTH, np.float32))
    relay.rig.workers = 1
    small = relay.rig.program([scale(relay.x[0], y, 0)])
    relay.rig.workers = 3
    assert relay.interpreter.run(small, relay.buffers.fill(step(1), 1, relay.picked)) == RUN_OK
    assert (relay.rig.view(y, 1, WIDTH) == 2.0).all() and relay.run() == RUN_OK


def test_a_profile_counts_every_packet(lib: Lib) -> None:
    relay = Relay(lib, 2)
    profile = relay.program.start_profile()
    assert relay.run(4) == RUN_OK and all((p["runs"] == 4).all() for p in profile)
    assert profile[1]["waiting"][0] > 0
    relay.program.stop_profile()
    assert relay.run() == RUN_OK and all((p["runs"] == 4).all() for p in profile)


def test_sampled_tokens_feed_the_next_step(lib: Lib, rng: Rng) -> None:
    """A chain: the logits of a token are its embedding row, so the next token is the row's largest column."""
    rig, vocab = Rig(lib), 16
    table = rng.permutation(vocab * vocab).reshape(vocab, vocab).astype(np.float32)
    follow = table.argmax(1)
    units = np.zeros((1, vocab // 2, 2, 16, 2), np.float32)
    units[0, :, 0] = table.reshape(vocab, vocab // 2, 2).transpose(1, 0, 2)
    y = rig.empty(2, vocab)
    rows = {"row0": 0, "row1": 2, "row_step": 1}
    packets = [
        Packet(Opcode.EMBED, {"table": rig.put((units.view(np.uint32) >> 16).astype(np.uint16)), "y": y},
               rows | {"width": vocab, "y_stride": vocab, "vocab": vocab}, {"scale": 1.0}),
        Packet(Opcode.SAMPLE, {"logits": y}, rows | {"vocab": vocab, "logits_stride": vocab}, domain=Domain.SAMPLES)]
    batch = step(2, 2)
    batch.tokens[:] = [3, 9]
    picked = rig.run(packets, batch, n_steps=6)
    token = np.array([3, 9])
    for e in range(6):
        token = follow[token]
        assert picked[e].tolist() == token.tolist()

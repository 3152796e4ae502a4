"""Counters and worker orders of the numpy interpreter."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from handmade import Handmade, as_f32, bf16

from plow.errors import RequestError, StuckDependency
from plow.packet.abi import STEP_COUNTER, Domain, Opcode
from plow.packet.codec import Packet
from plow.runtime.numpy_vm import NumpyBackend
from plow.runtime.step import StepBatch

ROWS = {"row0": 0, "row1": 8, "row_step": 1}
ORDERS = ["round_robin", "first_first", "last_first", *(f"random:{i}" for i in range(4))]
K = 32


def program(hm: Handmade, rng: np.random.Generator, drop_wait: bool = False) -> tuple[list[Packet], int]:
    """embed (worker 0) -> two projections cut over two workers -> sample (worker 1); tokens feed back.

    Counters: 0 step, 1 embed, 2 first projection, 3 second projection.
    """
    x, h, y = hm.rows(8, K), hm.rows(8, 64), hm.rows(8, 64)
    table, w1, w2 = (hm.units(bf16(rng.standard_normal(s))) for s in ((64, K), (64, K), (64, 64)))

    def linear(worker: int, src: int, dst: int, w: int, k: int, waits: list, signal: int) -> Packet:
        return Packet(
            Opcode.LINEAR,
            {"x": src, "weight": w, "y": dst},
            {**ROWS, "unit0": worker, "unit1": worker + 1, "k": k, "n": 64, "x_stride": k, "y_stride": 64},
            worker=worker,
            waits=waits,
            signals=[signal],
        )

    previous = (STEP_COUNTER, 2)
    packets = [
        Packet(
            Opcode.EMBED,
            {"table": table, "y": x},
            {**ROWS, "width": K, "y_stride": K, "vocab": 64},
            {"scale": 1.0},
            waits=[previous],
            signals=[1],
        ),
        linear(0, x, h, w1, K, [], 2),
        linear(1, x, h, w1, K, [previous, (1, 1)], 2),
        linear(0, h, y, w2, 64, [(2, 2)], 3),
        linear(1, h, y, w2, 64, [] if drop_wait else [(2, 2)], 3),
        Packet(
            Opcode.SAMPLE,
            {"logits": y},
            {**ROWS, "vocab": 64, "logits_stride": 64},
            domain=Domain.SAMPLES,
            worker=1,
            waits=[(3, 2)],
            signals=[STEP_COUNTER],
        ),
        Packet(Opcode.NOP, worker=0, waits=[(3, 2)], signals=[STEP_COUNTER]),
    ]
    return packets, y


def build(tmp_path: Path, order: str, poison: bool = True, **kw: bool) -> NumpyBackend:
    hm = Handmade(tmp_path / "bundle")
    packets, logits = program(hm, np.random.default_rng(3), **kw)
    return NumpyBackend(hm.bundle(packets, logits=logits, workers=2), order, poison)


def decode(vm: NumpyBackend, tokens: list[int], n_steps: int) -> np.ndarray:
    limits = vm.bundle.limits
    table = np.arange(limits.max_slots * limits.blocks_per_seq, dtype=np.int32).reshape(limits.max_slots, -1)
    n = len(tokens)
    return vm.run(0, StepBatch.greedy(tokens, [0] * n, range(n), range(n), table), n_steps)


def expected(seed_tokens: list[int], n_steps: int) -> list[list[int]]:
    rng = np.random.default_rng(3)
    table, w1, w2 = (as_f32(bf16(rng.standard_normal(s))) for s in ((64, K), (64, K), (64, 64)))
    rows, tokens = [], np.array(seed_tokens)
    for _ in range(n_steps):
        tokens = (table[tokens] @ w1.T @ w2.T).argmax(axis=1)
        rows.append(tokens.tolist())
    return rows


@pytest.mark.parametrize("order", ORDERS)
def test_every_worker_order_gives_the_same_tokens_over_many_steps(tmp_path: Path, order: str) -> None:
    vm = build(tmp_path, order)
    assert decode(vm, [5, 9, 60], 4).tolist() == expected([5, 9, 60], 4)
    assert decode(vm, [1], 3).tolist() == expected([1], 3), "counters go on from call to call"


def test_a_missing_wait_shows_as_a_wrong_result_in_an_adversarial_order(tmp_path: Path) -> None:
    right = expected([5, 9, 60], 1)
    results = {order: decode(build(tmp_path, order, drop_wait=True), [5, 9, 60], 1).tolist() for order in ORDERS}
    assert results["last_first"] != right
    assert any(r == right for r in results.values()), "the planted fault is a race and not a wrong program"


def test_a_wait_that_is_never_met_names_packet_counter_and_producer(tmp_path: Path) -> None:
    hm = Handmade(tmp_path / "bundle")
    packets, logits = program(hm, np.random.default_rng(3))
    packets[2].signals = []
    vm = NumpyBackend(hm.bundle(packets, logits=logits, workers=2))
    with pytest.raises(StuckDependency) as e:
        decode(vm, [5], 1)
    # first in topological order: worker 0's second projection; the sampler behind it is only a consequence
    assert "worker 0 packet 3 LINEAR node3" in e.value.where
    assert "counter 2 has 1, wants 2" in e.value.what
    assert "every producer has signalled" in e.value.what


def test_a_deadlock_names_the_producers_that_did_not_signal(tmp_path: Path) -> None:
    hm = Handmade(tmp_path / "bundle")
    packets, logits = program(hm, np.random.default_rng(3))
    packets[0].waits = [(3, 2)]
    vm = NumpyBackend(hm.bundle(packets, logits=logits, workers=2))
    with pytest.raises(StuckDependency) as e:
        decode(vm, [5], 1)
    assert "worker 0 packet 0 EMBED node0" in e.value.where
    assert (
        "2 producers did not signal: packet 3 LINEAR node3 (worker 0); packet 4 LINEAR node4 (worker 1)" in e.value.what
    )


def test_after_a_stuck_step_the_next_one_is_right(tmp_path: Path) -> None:
    vm = build(tmp_path, "round_robin")
    decode(vm, [5], 1)
    prog = vm._program(0)
    good = prog.lists[1].pop()  # the sampler no longer signals the step counter
    decode(vm, [5], 1)
    with pytest.raises(StuckDependency, match="counter 0"):
        decode(vm, [5], 1)
    prog.lists[1].append(good)
    assert decode(vm, [5, 9, 60], 2).tolist() == expected([5, 9, 60], 2)


def test_unknown_order_and_program_are_typed_errors(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="unknown order"):
        build(tmp_path, "backwards")
    vm = build(tmp_path, "random:1")
    with pytest.raises(RequestError, match="no program 1"):
        vm.run(1, StepBatch.greedy([1], [0], [0], [0], np.zeros((3, 4))))


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"positions": [0, 64]}, "position 64 of row 1"),
        ({"tokens": [0, 64]}, "token 64 of row 1"),
        ({"slots": [3, 0]}, "slot 3 of row 0"),
        ({"sample_rows": [2]}, "sample row 2"),
        ({"tokens": [-1, 0]}, "token -1"),
        ({"positions": [16, 0]}, "KV block -1 of row 0"),
    ],
)
def test_an_index_out_of_range_never_becomes_an_address(tmp_path: Path, change: dict, what: str) -> None:
    vm = build(tmp_path, "round_robin")
    table = np.full((3, 4), -1, np.int32)
    table[:, 0] = 0
    base = {"tokens": [1, 2], "positions": [0, 1], "slots": [0, 0], "sample_rows": [1]}
    vm.run(0, StepBatch.greedy(**base, page_table=table))
    with pytest.raises(RequestError, match=what):
        vm.run(0, StepBatch.greedy(**{**base, **change}, page_table=table))


def test_several_steps_need_a_pure_decode_batch_within_its_blocks(tmp_path: Path) -> None:
    vm = build(tmp_path, "round_robin")
    table = np.full((3, 4), -1, np.int32)
    table[:, 0] = 0
    with pytest.raises(RequestError, match="pure decode"):
        vm.run(0, StepBatch.greedy([1, 2], [0, 1], [0, 0], [1], table), n_steps=2)
    with pytest.raises(RequestError, match="KV block -1"):
        vm.run(0, StepBatch.greedy([1], [14], [0], [0], table), n_steps=3)

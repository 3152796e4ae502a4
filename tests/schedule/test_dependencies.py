"""Every conflict is ordered, by program order or counters; and nothing waits for what cannot come."""

import itertools
import random

import numpy as np
import pytest

from plow.packet.abi import NUM_WAITS, STEP_COUNTER, Opcode
from plow.packet.codec import Packet
from plow.packet.effects import effects, overlaps
from plow.schedule.dependencies import Group, Scheduled, schedule


def row_op(worker: int, read: int, write: int, row0: int = 0, row1: int = 4, step: int = 1) -> Packet:
    """y = f(a) on 64-float rows of buffers numbered in units of 4 rows."""
    dims = {"row0": row0, "row1": row1, "row_step": step, "width": 64, "a_stride": 64, "y_stride": 64}
    return Packet(Opcode.ELEMENTWISE, {"a": read * 1024, "y": write * 1024}, dims, worker=worker)


def happens_before(s: Scheduled, workers: int) -> list[set[int]]:
    """before[v]: packets that have finished when v starts, from program order and full counters only."""
    signallers: dict[int, list[int]] = {}
    for p in s.packets:
        for c in p.signals:
            signallers.setdefault(c, []).append(p.seq)
    before: list[set[int]] = []
    previous: dict[int, int] = {}
    for p in s.packets:
        have: set[int] = set()
        direct = [previous[p.worker]] if p.worker in previous else []
        for c, threshold in p.waits:
            if c != STEP_COUNTER:
                assert threshold == len(signallers[c])
                direct += signallers[c]
        for u in direct:
            assert u < p.seq
            have |= before[u] | {u}
        before.append(have)
        previous[p.worker] = p.seq
    return before


def conflicts(s: Scheduled) -> list[tuple[int, int]]:
    seen = [effects(p, 1) for p in s.packets]
    return [
        (u, v)
        for u, v in itertools.combinations(range(len(seen)), 2)
        if any("w" in (a.mode, b.mode) and overlaps(a.region, b.region) for a in seen[u] for b in seen[v])
    ]


def random_groups(rng: random.Random, workers: int) -> list[Group]:
    groups = []
    for i in range(rng.randint(2, 12)):
        read, write = rng.randrange(5), rng.randrange(5)
        rows = rng.choice([1, 4])
        n = min(workers, rows)
        packets = [row_op((w + i) % workers, read, write, w, rows, n) for w in range(n)]
        groups.append(Group(packets, list(range(i))))
    return groups


@pytest.mark.parametrize("seed", range(60))
def test_every_conflict_of_a_random_program_is_ordered(seed):
    rng = random.Random(seed)
    workers = rng.randint(1, 4)
    s = schedule(random_groups(rng, workers), workers, 1)
    before = happens_before(s, workers)
    assert all(u in before[v] for u, v in conflicts(s))


def test_dropping_any_wait_leaves_a_conflict_unordered():
    """Power: the waits are not decoration."""
    rng = random.Random(3)
    dropped = found = 0
    for _ in range(20):
        groups = random_groups(rng, 3)
        s = schedule(groups, 3, 1)
        for p in s.packets:
            for wait in [w for w in p.waits if w[0] != STEP_COUNTER]:
                kept = list(p.waits)
                p.waits.remove(wait)
                before = happens_before(s, 3)
                found += any(u not in before[v] for u, v in conflicts(s))
                dropped += 1
                p.waits = kept
    assert dropped > 20 and found == dropped


def test_program_order_needs_no_counter():
    s = schedule([Group([row_op(0, 0, 1)], []), Group([row_op(0, 1, 2)], [0])], 1, 1)
    assert s.counter_totals == [1] and all(c == STEP_COUNTER for p in s.packets for c, _ in p.waits)


def test_an_implied_order_needs_no_wait():
    """Worker 1 waited for group 1, whose packet came after group 0 on worker 0."""
    groups = [
        Group([row_op(0, 0, 1)], []),
        Group([row_op(0, 2, 3)], [0]),
        Group([row_op(1, 3, 4)], [0, 1]),
        Group([row_op(1, 1, 5)], [0, 1, 2]),
    ]
    s = schedule(groups, 2, 1)
    assert len([c for p in s.packets for c, _ in p.waits if c != STEP_COUNTER]) == 1


def test_more_waits_than_a_packet_holds_go_into_nops():
    writers = [Group([row_op(w, 9, w)], []) for w in range(1, 7)]
    reader = Packet(
        Opcode.ELEMENTWISE,
        {"a": 1024, "y": 1 << 20},
        {"row0": 0, "row1": 24, "row_step": 1, "width": 64, "a_stride": 64, "y_stride": 64},
    )
    s = schedule([*writers, Group([reader], list(range(6)))], 7, 1)
    before = happens_before(s, 7)
    assert all(len(p.waits) <= NUM_WAITS for p in s.packets) and sum(p.opcode == Opcode.NOP for p in s.packets) == 1
    assert len(before[reader.seq]) == 7


def test_every_worker_takes_part_in_the_step_counter():
    s = schedule([Group([row_op(0, 0, 1)], [])], 3, 1)
    assert s.counter_totals[STEP_COUNTER] == 3
    for w in range(3):
        mine = [p for p in s.packets if p.worker == w]
        assert mine[0].waits[0] == (STEP_COUNTER, 3) and mine[-1].signals[-1] == STEP_COUNTER


def test_sequence_numbers_increase_along_every_list():
    s = schedule(random_groups(random.Random(5), 4), 4, 1)
    assert [p.seq for p in s.packets] == list(range(len(s.packets))) and np.all(
        np.diff([p.seq for p in s.packets if p.worker == 0]) > 0
    )

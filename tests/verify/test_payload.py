"""The payload says what the packets say: required orders are complete, and each has a real witness."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from plow.errors import VerifyError
from plow.packet.codec import decode
from plow.packet.container import PacketFile
from plow.packet.effects import Effect, Region, overlaps
from plow.verify import payload_d
from plow.verify.format_d import sync_of
from plow.verify.hazards import packet_effects, required
from plow.verify.order import Order, Sync


def row(r0: int, r1: int, c0: int = 0, c1: int = 16, step: int = 1, offset: int = 0) -> Region:
    return Region(offset, 16, r0, r1, step, c0, c1)


def effect(mode: str, region: Region) -> list[Effect]:
    return [Effect(mode, "x", region)]


@pytest.mark.parametrize(("first", "second", "kind"), [
    ("w", "r", "RAW"), ("r", "w", "WAR"), ("w", "w", "WAW"), ("r", "r", None)])
def test_conflicts_of_two_workers_are_listed_by_kind(first: str, second: str, kind: str | None) -> None:
    found = required([effect(first, row(0, 2)), effect(second, row(1, 3))], [0, 1])
    assert [h.kind for h in found] == ([kind] if kind else [])


@pytest.mark.parametrize("other", [row(2, 4), row(0, 2, 16, 20), row(0, 2, offset=4096)])
def test_disjoint_regions_need_no_order(other: Region) -> None:
    assert required([effect("w", row(0, 2, 0, 16)), effect("w", other)], [0, 1]) == []


def test_orders_that_follow_from_others_are_not_listed() -> None:
    x, y = row(0, 1), row(5, 6)
    chain = [effect("w", x), effect("r", x) + effect("w", y), effect("r", y) + effect("w", x)]
    assert [(h.before, h.after) for h in required(chain, [0, 1, 0])] == [(0, 1), (1, 2)]
    same_worker = [effect("w", row(0, 1)), effect("w", row(1, 2)), effect("r", row(0, 2))]
    assert [(h.before, h.after) for h in required(same_worker, [0, 0, 1])] == [(1, 2)]


def test_listed_orders_and_worker_lists_imply_every_conflict_of_random_programs() -> None:
    rng = np.random.default_rng(5)
    for _ in range(150):
        n, workers = int(rng.integers(2, 12)), int(rng.integers(1, 4))
        lists = [int(w) for w in rng.integers(0, workers, n)]
        effects = [[Effect("rw"[rng.integers(2)], "x", row(a, a + int(rng.integers(1, 3)), step=1 + a % 2))
                    for a in rng.integers(0, 6, rng.integers(1, 4)).tolist()] for _ in range(n)]
        before = np.zeros((n, n), bool)
        for u, v in itertools.combinations(range(n), 2):
            before[u, v] = lists[u] == lists[v]
        for h in required(effects, lists):
            before[h.before, h.after] = True
        for k in range(n):
            before |= np.outer(before[:, k], before[k])
        for u, v in itertools.combinations(range(n), 2):
            pairs = itertools.product(effects[u], effects[v])
            conflict = any("w" in a.mode + b.mode and overlaps(a.region, b.region) for a, b in pairs)
            assert before[u, v] or not conflict


def test_records_are_the_bytes_of_the_packets_in_topological_order(sample: PacketFile) -> None:
    payload = payload_d.build(sample)[0]
    raw = sample.programs[0].by_seq()
    assert payload.records == [r.tobytes()[4:36] for r in raw]
    for record, r in zip(payload.records, raw, strict=True):
        packet = decode(r)
        assert sync_of(record) == Sync(packet.worker, packet.waits, packet.signals)
    assert sum(payload.lengths) == len(raw)
    assert payload.totals == sample.programs[0].counter_totals


def test_a_missing_wait_names_packets_nodes_range_and_kind(sample: PacketFile) -> None:
    packets = sample.programs[0].lists[1].copy()
    assert decode(packets[1]).waits
    packets["waits"][1, 0] = (0xFFFF, 0)
    sample.programs[0].lists[1] = packets
    with pytest.raises(VerifyError) as e:
        payload_d.build(sample)
    line = e.value.line()
    assert "RAW: packet 3 LINEAR layer.0.up (worker 1) may start before packet 0 EMBED embed (worker 0)" in line
    assert "arena bytes 1048576..1049600" in line and "T=4" in line


def test_a_list_out_of_order_is_a_typed_error(sample: PacketFile) -> None:
    sample.programs[0].lists[0] = sample.programs[0].lists[0][::-1]
    with pytest.raises(VerifyError, match="does not increase in seq"):
        payload_d.build(sample)


def test_sample_must_follow_what_reads_the_rows_token(sample: PacketFile) -> None:
    packets = [decode(r) for r in sample.programs[0].by_seq()]
    embed, sampler = packets[0], packets[-1]
    found = required([packet_effects(embed, 8), packet_effects(sampler, 8)], [0, 1])
    assert [(h.kind, h.where()) for h in found] == [("WAR", "the step's tokens and positions")]


def test_a_chain_through_a_third_worker_is_found_and_shortened() -> None:
    packets = [Sync(0, [], []), Sync(0, [], [1]), Sync(1, [(1, 1)], []), Sync(1, [], []), Sync(1, [], [2]),
               Sync(2, [(2, 1)], [])]
    order = Order(packets, [0, 1, 1])
    assert order.chain(0, 5) == [1, 2, 4]
    assert order.chain(1, 5) == [2, 4]
    assert order.chain(4, 5) == []
    assert order.chain(5, 0) is None


def test_a_partial_threshold_orders_nothing() -> None:
    packets = [Sync(0, [], [1]), Sync(1, [], [1]), Sync(2, [(1, 1)], [])]
    assert Order(packets, [0, 2]).chain(0, 2) is None
    packets[2] = Sync(2, [(1, 2)], [])
    assert Order(packets, [0, 2]).chain(0, 2) == []

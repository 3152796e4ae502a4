"""Blocks are accounted for exactly."""

from __future__ import annotations

import random

import pytest

from plow.errors import RequestError
from plow.runtime.kv import BlockManager
from plow.runtime.step import Limits

LIMITS = Limits(
    max_ctx=64,
    max_slots=4,
    max_rows=8,
    max_samples=4,
    num_kv_blocks=10,
    kv_block=16,
    vocab_size=9,
    num_layers=1,
    blocks_per_seq=4,
)


@pytest.mark.parametrize(("positions", "blocks"), [(1, 1), (16, 1), (17, 2), (64, 4)])
def test_a_sequence_gets_the_blocks_it_needs(positions: int, blocks: int) -> None:
    m = BlockManager(LIMITS)
    slot = m.allocate(positions)
    assert (m.page_table[slot] >= 0).sum() == blocks == m.used_blocks
    assert (m.page_table[slot, blocks:] == -1).all()


def test_blocks_of_live_sequences_never_overlap_and_all_come_back() -> None:
    m, rng, live = BlockManager(LIMITS), random.Random(5), []
    for _ in range(500):
        positions = rng.randint(1, 64)
        if live and (rng.random() < 0.4 or not m.can_allocate(positions)):
            m.free(live.pop(rng.randrange(len(live))))
        elif m.can_allocate(positions):
            live.append(m.allocate(positions))
        used = [b for s in live for b in m.page_table[s] if b >= 0]
        assert len(used) == len(set(used)) == m.used_blocks
        assert m.free_slots == 4 - len(live)
    for slot in live:
        m.free(slot)
    assert m.free_blocks == 10 and (m.page_table == -1).all()


def test_a_double_free_is_an_error_and_changes_nothing() -> None:
    m = BlockManager(LIMITS)
    slot = m.allocate(20)
    m.free(slot)
    with pytest.raises(RequestError, match="not allocated"):
        m.free(slot)
    with pytest.raises(RequestError, match="not allocated"):
        m.free(99)
    assert m.free_blocks == 10 and m.free_slots == 4


def test_allocating_beyond_the_pool_or_the_context_is_an_error() -> None:
    m = BlockManager(LIMITS)
    with pytest.raises(RequestError, match="do not fit a sequence"):
        m.allocate(65)
    with pytest.raises(RequestError, match="do not fit a sequence"):
        m.allocate(0)
    m.allocate(64)
    m.allocate(64)
    assert not m.can_allocate(33) and m.can_allocate(32)
    with pytest.raises(RequestError, match="3 blocks wanted, 2 blocks and 2 slots are free"):
        m.allocate(33)

"""BlockManager: which KV blocks belong to which sequence slot.

    position p of slot s lies in block page_table[s, p // 16] at place p % 16; -1 = no block
"""

from __future__ import annotations

import numpy as np

from plow.errors import RequestError
from plow.runtime.step import Limits


class BlockManager:
    """Slots and blocks of one arena. A sequence reserves all the blocks it may ever need when it is admitted, so a
    running sequence never waits for memory and nothing is ever preempted."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.page_table = np.full((limits.max_slots, limits.blocks_per_seq), -1, np.int32)
        self._free_blocks = list(range(limits.num_kv_blocks))[::-1]
        self._free_slots = list(range(limits.max_slots))[::-1]

    @property
    def free_blocks(self) -> int:
        return len(self._free_blocks)

    @property
    def used_blocks(self) -> int:
        return self.limits.num_kv_blocks - len(self._free_blocks)

    @property
    def free_slots(self) -> int:
        return len(self._free_slots)

    def can_allocate(self, positions: int) -> bool:
        return bool(self._free_slots) and self.limits.blocks_for(positions) <= len(self._free_blocks)

    def allocate(self, positions: int) -> int:
        """Reserve blocks for `positions` positions; returns the slot. Raises RequestError when it cannot."""
        need = self.limits.blocks_for(positions)
        if not 1 <= need <= self.limits.blocks_per_seq:
            raise RequestError(f"{positions} positions do not fit a sequence of {self.limits.max_ctx}", "BlockManager")
        if not self.can_allocate(positions):
            raise RequestError(f"{need} blocks wanted, {self.free_blocks} blocks and {self.free_slots} slots are free",
                               "BlockManager", "wait for a sequence to end")
        slot = self._free_slots.pop()
        self.page_table[slot, :need] = [self._free_blocks.pop() for _ in range(need)]
        return slot

    def free(self, slot: int) -> None:
        """Give a slot and its blocks back. Raises RequestError for a slot that is not allocated (double free)."""
        if not 0 <= slot < self.limits.max_slots or self.page_table[slot, 0] < 0:
            raise RequestError(f"slot {slot} is not allocated", "BlockManager", "free every slot exactly once")
        row = self.page_table[slot]
        self._free_blocks += row[row >= 0].tolist()[::-1]
        row[:] = -1
        self._free_slots.append(slot)

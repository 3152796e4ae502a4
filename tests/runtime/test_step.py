"""What a step may hold."""

from __future__ import annotations

import numpy as np
import pytest

from plow.errors import RequestError
from plow.runtime.step import Limits, StepBatch

LIMITS = Limits(64, 2, 8, 2, 8, 16, 100, 1, 4)
PAGES = np.arange(8, dtype=np.int32).reshape(2, 4)


def test_two_rows_at_one_position_are_a_typed_error() -> None:
    """Packets that append different rows are not ordered against each other."""
    with pytest.raises(RequestError, match="same position"):
        StepBatch.greedy([1, 2], [5, 5], [0, 0], [0], PAGES).check(LIMITS, 8, 2)
    StepBatch.greedy([1, 2], [5, 5], [0, 1], [0], PAGES).check(LIMITS, 8, 2)


def test_two_sequences_that_share_a_block_at_one_cell_are_a_typed_error() -> None:
    shared = PAGES.copy()
    shared[1, 0] = 0
    with pytest.raises(RequestError, match="same position"):
        StepBatch.greedy([1, 2], [5, 5], [0, 1], [0], shared).check(LIMITS, 8, 2)

"""Metrics: exact on cases with known answers, and never a pass for a NaN."""

from __future__ import annotations

import math

import numpy as np
import pytest

from plow.oracle import metrics as m

RNG = np.random.RandomState(0)
LOGITS = RNG.standard_normal((5, 40)) * 3


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_nan_or_infinity_is_infinitely_wrong(bad: float) -> None:
    broken = LOGITS.copy()
    broken[2, 7] = bad
    for a, b in ((LOGITS, broken), (broken, LOGITS)):
        assert m.max_abs_error(a, b) == m.max_rel_error(a, b) == math.inf
        assert np.isinf(m.kl(a, b)).all()
    assert m.nll(broken, np.zeros(5, int)) == math.inf
    assert m.argmax_agreement(LOGITS, broken).agree == 4, "only the row that is whole counts"


def test_errors_are_zero_for_equal_and_exact_for_different_arrays() -> None:
    assert m.max_abs_error(LOGITS, LOGITS) == 0.0
    other = LOGITS.copy()
    other[1, 1] += 0.5
    assert m.max_abs_error(LOGITS, other) == pytest.approx(0.5)
    assert m.max_rel_error(LOGITS, other) == pytest.approx(0.5 / np.abs(LOGITS).max())
    assert m.max_rel_error(np.zeros(3), np.full(3, 0.25)) == 0.25


def test_shapes_that_would_broadcast_are_refused() -> None:
    with pytest.raises(ValueError, match="shapes differ"):
        m.max_abs_error(LOGITS, LOGITS[:1])


def test_kl_is_zero_for_shifted_logits_and_positive_otherwise() -> None:
    assert m.kl(LOGITS, LOGITS + 7).max() < 1e-12
    p, q = np.log([[0.5, 0.5]]), np.log([[0.9, 0.1]])
    assert m.kl(p, q)[0] == pytest.approx(0.5 * math.log(0.5 / 0.9) + 0.5 * math.log(0.5 / 0.1))


def test_nll_and_perplexity_of_uniform_logits_are_those_of_the_vocabulary() -> None:
    targets = np.array([0, 3, 9])
    assert m.nll(np.zeros((3, 16)), targets) == pytest.approx(math.log(16))
    assert m.perplexity(np.zeros((3, 16)), targets) == pytest.approx(16.0)
    assert m.nll(np.eye(3) * 1000, np.arange(3)) == 0.0


def test_common_prefix_stops_at_the_first_difference() -> None:
    assert m.common_prefix([1, 2, 3], [1, 2, 4]) == 2
    assert m.common_prefix([1, 2], [1, 2, 3]) == 2
    assert m.common_prefix([], [1]) == 0


def test_rows_within_the_margin_are_not_judged_and_no_judged_row_is_no_agreement() -> None:
    reference = np.array([[1.0, 0.999, 0.0], [5.0, 0.0, 0.0]])
    swapped = np.array([[0.999, 1.0, 0.0], [5.0, 0.0, 0.0]])
    assert m.argmax_agreement(reference, swapped) == m.Agreement(1, 2, 2)
    assert m.argmax_agreement(reference, swapped, margin=0.01).rate == 1.0
    assert m.argmax_agreement(reference, swapped, margin=100.0).rate == 0.0
    assert m.margins(reference) == pytest.approx([0.001, 5.0])

"""SAMPLE: its cuts, its random numbers, and the validation of its parameters."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plow.errors import RequestError
from plow.runtime.sampler import GOLDEN, SamplingParams, log_softmax, sample, splitmix64, uniform

LOGITS = np.log(np.array([0.1, 0.4, 0.2, 0.25, 0.05], np.float32))


def draw(
    n: int = 4000,
    logits: np.ndarray = LOGITS,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
) -> np.ndarray:
    """Shares of each token over n positions of one seed."""
    got = [sample(logits, temperature, top_k, top_p, min_p, 42, p) for p in range(n)]
    return np.bincount(got, minlength=len(logits)) / n


def test_splitmix64_gives_the_published_sequence() -> None:
    # first outputs for seed 1234567, as in the reference implementation's test vectors
    assert [splitmix64(1234567 + i * GOLDEN) for i in range(3)] == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
    ]


def test_greedy_takes_the_lowest_index_among_equals() -> None:
    assert sample(np.array([1, 7, 3, 7], np.float32), 0, 1, 0.1, 1.0, 9, 9) == 1


def test_shares_follow_the_softmax_and_the_temperature() -> None:
    np.testing.assert_allclose(draw(), np.exp(LOGITS), atol=0.02)
    hot = np.exp(LOGITS / 2) / np.exp(LOGITS / 2).sum()
    np.testing.assert_allclose(draw(temperature=2.0), hot, atol=0.02)


@pytest.mark.parametrize(
    ("cut", "kept"),
    [
        ({"top_k": 2}, {1, 3}),
        ({"top_p": 0.6}, {1, 3}),
        ({"top_p": 0.66}, {1, 3, 2}),
        ({"min_p": 0.45}, {1, 3, 2}),
        ({"min_p": 0.9}, {1}),
        ({"top_k": 3, "min_p": 0.6}, {1, 3}),
        ({"top_p": 1e-6}, {1}),
        ({"top_k": 99}, {0, 1, 2, 3, 4}),
    ],
)
def test_cuts_keep_exactly_the_candidates_they_should(cut: dict, kept: set[int]) -> None:
    share = draw(1500, **cut)
    assert set(np.flatnonzero(share)) == kept
    p = np.where(np.isin(np.arange(5), list(kept)), np.exp(LOGITS), 0)
    np.testing.assert_allclose(share, p / p.sum(), atol=0.04)


def test_top_k_breaks_ties_by_the_lower_index() -> None:
    assert set(np.flatnonzero(draw(200, logits=np.zeros(6, np.float32), top_k=2))) == {0, 1}


def test_equal_seeds_repeat_and_other_seeds_or_positions_do_not() -> None:
    def texts(seed: int) -> list[int]:
        return [sample(LOGITS, 1.0, 0, 1.0, 0.0, seed, p) for p in range(50)]

    assert texts(1) == texts(1)
    assert texts(1) != texts(2)
    assert len(set(texts(1))) > 2


@given(
    st.lists(st.floats(-50, 50, width=32), min_size=1, max_size=40),
    st.floats(0.05, 5),
    st.integers(0, 50),
    st.floats(0.01, 1),
    st.floats(0, 1),
    st.integers(0, 2**64 - 1),
    st.integers(0, 1 << 20),
)
@settings(max_examples=200, deadline=None)
def test_a_sample_is_a_valid_token_within_top_k(
    logits: list[float], t: float, k: int, p: float, m: float, seed: int, position: int
) -> None:
    x = np.array(logits, np.float32)
    token = sample(x, t, k, p, m, seed, position)
    assert 0 <= token < len(x)
    if k:
        assert (x > x[token]).sum() < k
    assert 0 <= uniform(seed, position) < 1


@pytest.mark.parametrize(
    "bad",
    [
        {"temperature": -0.1},
        {"temperature": math.nan},
        {"temperature": math.inf},
        {"temperature": "1"},
        {"top_p": 0.0},
        {"top_p": 1.01},
        {"top_k": -1},
        {"top_k": 1.5},
        {"min_p": -0.1},
        {"min_p": 1.1},
        {"seed": 1 << 64},
        {"seed": 0.5},
        {"top_k": True},
    ],
)
def test_a_bad_parameter_is_a_typed_error_that_names_it(bad: dict) -> None:
    with pytest.raises(RequestError, match=next(iter(bad))):
        SamplingParams(**bad)


def test_negative_and_large_seeds_are_allowed() -> None:
    assert SamplingParams(seed=-5).seed == -5
    assert SamplingParams(seed=(1 << 64) - 1).fork(3) != SamplingParams(seed=(1 << 64) - 1).fork(2)


def test_fork_leaves_choice_zero_alone() -> None:
    p = SamplingParams(0.5, 3, 0.9, 0.1, 7)
    assert p.fork(0) == p
    assert p.fork(1).seed != 7 and p.fork(1).top_k == 3


def test_log_softmax_is_exact_for_large_logits() -> None:
    np.testing.assert_allclose(np.exp(log_softmax(LOGITS + np.float32(1000))), np.exp(LOGITS), rtol=1e-4)

"""Sampling parameters and the reference semantics of SAMPLE."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from plow.errors import RequestError

MASK64 = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15
"""Increment of splitmix64 (Steele, Lea, Flood 2014)."""


@dataclass(frozen=True)
class SamplingParams:
    """temperature 0 = greedy; top_k 0 = off; top_p 1 = off; min_p 0 = off; seed: 64 bits, equal seeds repeat a text."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        """Raises RequestError naming the parameter."""
        _require(_finite(self.temperature) and 0 <= self.temperature <= 100, "temperature", self.temperature, "0..100")
        _require(_integer(self.top_k) and 0 <= self.top_k < 1 << 31, "top_k", self.top_k, "an integer >= 0, 0 = off")
        _require(_finite(self.top_p) and 0 < self.top_p <= 1, "top_p", self.top_p, "above 0, at most 1")
        _require(_finite(self.min_p) and 0 <= self.min_p <= 1, "min_p", self.min_p, "0..1")
        _require(_integer(self.seed) and -(1 << 63) <= self.seed <= MASK64, "seed", self.seed, "64 bits")

    def fork(self, index: int) -> SamplingParams:
        """Parameters of choice `index` of a request with n > 1: the same with another seed; 0 is unchanged."""
        seed = self.seed if index == 0 else splitmix64(self.seed + index * GOLDEN)
        return SamplingParams(self.temperature, self.top_k, self.top_p, self.min_p, seed)


def _finite(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _require(ok: bool, name: str, value: object, allowed: str) -> None:
    if not ok:
        raise RequestError(f"{name} is {value!r}", "sampling parameters", f"use {allowed}")


def splitmix64(state: int) -> int:
    """Finaliser of splitmix64 over state mod 2^64 (the caller adds the increment)."""
    z = (state + GOLDEN) & MASK64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK64
    return z ^ (z >> 31)


def uniform(seed: int, position: int) -> float:
    """u in [0, 1) with 53 bits, a function of the sequence's seed and the row's position alone."""
    return (splitmix64(seed + position * GOLDEN) >> 11) * 2.0**-53


def sample(logits: np.ndarray, temperature: float, top_k: int, top_p: float, min_p: float, seed: int,
           position: int) -> int:
    """One token of logits f32 [vocab]. Greedy: lowest index among equals.

    Else p = softmax(logits / temperature) in float64, candidates in descending order (equals: lower index first), cut
    to top_k, then to the shortest prefix with cumulative p >= top_p, then to p >= min_p * max p; the first candidate
    whose cumulative p exceeds u * (sum of the kept p) is taken.
    """
    if temperature == 0:
        return int(np.argmax(logits))
    scaled = logits.astype(np.float64) / temperature
    order = np.argsort(-scaled, kind="stable")
    p = np.exp(scaled - scaled[order[0]])
    p = (p / p.sum())[order]
    if top_k:
        p = p[:top_k]
    if top_p < 1:
        p = p[: int(np.searchsorted(np.cumsum(p), top_p)) + 1]
    p = p[p >= min_p * p[0]]
    cumulative = np.cumsum(p)
    pick = int(np.searchsorted(cumulative, uniform(seed, position) * cumulative[-1], side="right"))
    return int(order[min(pick, len(p) - 1)])


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """float64 log-probabilities of f32 logits [..., vocab], at temperature 1."""
    x = logits.astype(np.float64)
    x -= x.max(axis=-1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=-1, keepdims=True))

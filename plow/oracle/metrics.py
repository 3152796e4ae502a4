"""Comparison metrics. All are computed in float64; a NaN or infinity in either operand gives inf, never a pass.

logits: [rows, vocab]; targets: [rows] token ids.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

Array = np.ndarray


def max_abs_error(reference: Array, value: Array) -> float:
    if not (np.isfinite(reference).all() and np.isfinite(value).all()):
        return math.inf
    return float(np.max(np.abs(_f64(reference, value))))


def max_rel_error(reference: Array, value: Array) -> float:
    """Largest error over the largest magnitude of the reference (1.0 where the reference is all zero)."""
    error = max_abs_error(reference, value)
    return error if math.isinf(error) else error / (float(np.max(np.abs(reference))) or 1.0)


def log_softmax(logits: Array) -> Array:
    x = logits.astype(np.float64)
    x = x - x.max(axis=-1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=-1, keepdims=True))


def kl(reference: Array, value: Array) -> Array:
    """KL(softmax(reference) || softmax(value)) of each row, in nats: [rows]."""
    if not (np.isfinite(reference).all() and np.isfinite(value).all()):
        return np.full(reference.shape[0], math.inf)
    p, q = log_softmax(reference), log_softmax(value)
    return np.maximum((np.exp(p) * (p - q)).sum(axis=-1), 0.0)


def nll(logits: Array, targets: Array) -> float:
    """Mean negative log likelihood of the targets, in nats."""
    if not np.isfinite(logits).all():
        return math.inf
    return float(-np.mean(log_softmax(logits)[np.arange(len(targets)), targets]))


def perplexity(logits: Array, targets: Array) -> float:
    return math.exp(nll(logits, targets))


def common_prefix(a: list[int], b: list[int]) -> int:
    """Number of leading tokens that agree."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


@dataclass(frozen=True)
class Agreement:
    """agree of judged rows have the reference's argmax; rows whose reference margin is below `margin` are not judged:
    there the two best tokens are a tie within the arithmetic's noise."""

    agree: int
    judged: int
    total: int

    @property
    def rate(self) -> float:
        """0.0 when no row could be judged: no evidence is no agreement."""
        return self.agree / self.judged if self.judged else 0.0


def margins(logits: Array) -> Array:
    """Top-1 minus top-2 logit of each row."""
    top = np.partition(logits, -2, axis=-1)[..., -2:]
    return top[..., 1] - top[..., 0]


def argmax_agreement(reference: Array, value: Array, margin: float = 0.0) -> Agreement:
    judged = margins(reference) >= margin
    same = (reference.argmax(axis=-1) == value.argmax(axis=-1)) & np.isfinite(value).all(axis=-1)
    return Agreement(int((same & judged).sum()), int(judged.sum()), len(judged))


def _f64(reference: Array, value: Array) -> Array:
    if reference.shape != value.shape:
        raise ValueError(f"shapes differ: {reference.shape} and {value.shape}")
    return reference.astype(np.float64) - value.astype(np.float64)

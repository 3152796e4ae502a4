"""Whether an arm computes the model: logits beside transformers in fp32 on the same weights, keys and values."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from .arm import Arm, teacher_forced
from .hf import Eager
from .weights import Weights

YARDSTICK_LIMIT = 0.1
"""Relative error (rms) that transformers in bf16 may have itself."""
SLACK = 1.5
"""Another order of the same bf16 roundings: an arm's error may be so many times transformers'."""
LEAST_LIMIT = 0.01
"""Where transformers itself is closer than bf16 lets another order of roundings be (shallow models)."""


@dataclass(frozen=True)
class Case:
    """Tokens i64 [batch, steps] that are fed one by one from position `start` on."""

    tokens: torch.Tensor
    start: int


@dataclass(frozen=True)
class Agreement:
    """rms, max_error: of |found - wanted| / |wanted| of the logit vectors over positions and sequences; argmax: share
    of equal arg-maxes; gap: by how much the reference's logit of the arm's choice is below its best, at most, in
    standard deviations of the reference's logits."""

    rms: float
    max_error: float
    argmax: float
    gap: float

    def fault(self, limit: float) -> str:
        """Why an arm with these numbers is invalid, or empty. limit: of rms; one position may be off by twice that, and
        a choice may differ where the error allows it."""
        if not (self.rms <= limit and self.max_error <= 2 * limit):  # also not a number
            return f"logits are off by {self.rms:.4f} (at most {self.max_error:.4f}), the limit is {limit:.4f}"
        if not self.gap <= 6 * limit:
            return f"a chosen token is {self.gap:.3f} standard deviations below the best, the limit is {6 * limit:.3f}"
        return ""


def cases_of(batch: int, vocab: int, start: int, device: str) -> list[Case]:
    """A short prompt into an empty cache, and a few tokens after `start` random positions."""
    g = torch.Generator().manual_seed(3)
    short, late = (torch.randint(0, vocab, (batch, n), generator=g).to(device) for n in (12, 4))
    return [Case(short, 0), Case(late, start)]


def run_cases(arm: Arm, cases: list[Case], kv: torch.Tensor) -> list[torch.Tensor]:
    """f32 [steps, batch, vocab] of each case. The cache is filled before each: a case writes into it."""
    found = []
    for case in cases:
        arm.fill(kv)
        found.append(teacher_forced(arm, case.tokens, case.start))
    arm.fill(kv)
    return found


def reference(weights: Weights, cases: list[Case], kv: torch.Tensor) -> list[torch.Tensor]:
    """Logits of transformers in fp32 on fp32 copies of the weights, which are given back."""
    arm = Eager(weights, kv.shape[2], kv.shape[4], torch.float32)
    return run_cases(arm, cases, kv)


def compare(found: list[torch.Tensor], wanted: list[torch.Tensor]) -> Agreement:
    """Over all cases. Logits that are not finite have error infinity."""
    errors, gap, equal = [], 0.0, 0
    for f, w in zip(found, wanted, strict=True):
        if f.shape != w.shape or not bool(torch.isfinite(f).all()):
            return Agreement(float("inf"), float("inf"), 0.0, float("inf"))
        errors.append(((f - w).norm(dim=-1) / w.norm(dim=-1)).flatten())
        chosen = f.argmax(-1, keepdim=True)
        below = (w.amax(-1) - w.gather(-1, chosen)[..., 0]) / w.std(-1)
        gap = max(gap, float(below.max()))
        equal += int((chosen[..., 0] == w.argmax(-1)).sum())
    e = torch.cat(errors)
    return Agreement(float(e.square().mean().sqrt()), float(e.max()), equal / e.numel(), gap)

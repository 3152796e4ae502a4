"""Paired A/B comparison: interleaved arms, a second control, a noise floor, a verdict."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from plow.errors import ConfigError

Measure = Callable[[], float]
"""One measurement of an arm in seconds (smaller is better)."""


@dataclass(frozen=True)
class AB:
    """Medians in seconds. ratio = control / treatment (above 1: the treatment is faster); noise = max(|c1 - c2|,
    |t1 - t2|) between the halves of the rounds; verdict "win" | "loss" | "not convictable" (inside the noise)."""

    control_s: float
    second_control_s: float
    treatment_s: float
    ratio: float
    noise_s: float
    rounds: int
    verdict: str

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def compare(control: Measure, treatment: Measure, rounds: int = 6) -> AB:
    """Measure control, treatment, control again, treatment again in every round; judge.

    The order turns from round to round, so a drift of the machine hits all arms alike. Raises ConfigError for fewer
    than 2 rounds or a measurement that is not a positive finite number.
    """
    if rounds < 2:
        raise ConfigError(f"{rounds} rounds give no noise floor", "A/B", "use at least 2")
    c1: list[float] = []
    c2: list[float] = []
    t1: list[float] = []
    t2: list[float] = []
    arms = [(control, c1), (treatment, t1), (control, c2), (treatment, t2)]
    for i in range(rounds):
        for measure, into in arms[i % 4 :] + arms[: i % 4]:
            into.append(_valid(measure()))
    return judge(c1, c2, t1, t2)


def judge(c1: list[float], c2: list[float], t1: list[float], t2: list[float]) -> AB:
    """The verdict from the four series (control, second control, treatment, second treatment)."""
    a, b, x, y = (statistics.median(s) for s in (c1, c2, t1, t2))
    control, treatment = statistics.median(c1 + c2), statistics.median(t1 + t2)
    noise = max(abs(a - b), abs(x - y))
    gain = control - treatment
    verdict = "not convictable" if abs(gain) <= noise else "win" if gain > 0 else "loss"
    return AB(control, b, treatment, control / treatment, noise, len(c1), verdict)


def _valid(seconds: float) -> float:
    if not math.isfinite(seconds) or seconds <= 0:
        raise ConfigError(f"a measurement gave {seconds!r} seconds", "A/B", "the arm did not run")
    return seconds

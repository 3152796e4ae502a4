"""What turns a report red, and what does not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from harness.registry import no_gate, no_work
from harness.verdict import GREEN, RED, decide
from stages.base import Check, Measured, Stage, StageError, Thresholds, holds

STAGE = Stage(1, "s1_x", "X", ("a",), no_work, no_gate, checks=("error", "tokens"))
PINNED = Thresholds.parse('[error]\nrelation = "<="\nthreshold = 0.5\n[tokens]\nrelation = "=="\nthreshold = 10\n')


def check(name: str, measured: Any, command: str = "repeat") -> dict[str, Any]:
    return PINNED.check(name, measured, command).__dict__


def extra(**fields: Any) -> dict[str, Any]:
    return {
        "name": "speed",
        "measured": 1.0,
        "threshold": None,
        "relation": "info",
        "ok": True,
        "command": "",
        "detail": "",
        **fields,
    }


GOOD = [check("error", 0.25), check("tokens", 10)]


def test_a_complete_report_is_green() -> None:
    verdict = decide(STAGE, PINNED, [*GOOD, extra()], ["certificate G"])
    assert verdict.exit_code == GREEN and not verdict.reasons and verdict.not_run == ("certificate G",)


@pytest.mark.parametrize(
    ("checks", "not_run", "words"),
    [
        ([GOOD[0]], [], "tokens: declared, and missing"),
        ([GOOD[0]], ["tokens"], "tokens: declared, and not run"),
        ([check("error", 0.75), GOOD[1]], [], "error: measured 0.75, must be <= 0.5"),
        ([check("error", float("nan")), GOOD[1]], [], "error: measured nan"),
        ([*GOOD, extra(measured=float("nan"))], [], "speed: measured nan"),
        ([{**GOOD[0], "measured": 9.0}, GOOD[1]], [], "called it ok"),
        ([{**GOOD[0], "ok": False, "detail": "typed"}, GOOD[1]], [], "itself calls it failed: typed"),
        ([{**GOOD[0], "threshold": 0.6}, GOOD[1]], [], "threshold 0.6 where thresholds.toml says 0.5"),
        ([{**GOOD[0], "relation": "info"}, GOOD[1]], [], "relation 'info' where thresholds.toml says '<='"),
        ([{**GOOD[0], "command": ""}, GOOD[1]], [], "no command"),
        ([*GOOD, GOOD[0]], [], "error: reported 2 times"),
        ([*GOOD, {"name": "x"}], [], "not a check"),
        ([*GOOD, extra(relation="~")], [], "not a check"),
        ([], [], "no check"),
    ],
)
def test_a_fault_is_red_and_named(checks: list[Any], not_run: list[str], words: str) -> None:
    verdict = decide(STAGE, PINNED, checks, not_run)
    assert verdict.exit_code == RED and any(words in reason for reason in verdict.reasons), verdict.reasons


def test_a_declared_check_is_information_only_if_the_file_says_so() -> None:
    stage = Stage(1, "s1_x", "X", ("a",), no_work, no_gate, checks=("speed",))
    assert not decide(stage, Thresholds({}), [extra()], []).green
    assert decide(stage, Thresholds.parse('[speed]\nrelation = "info"\n'), [extra()], []).green


def test_every_threshold_in_the_file_must_be_reported() -> None:
    bare = Stage(1, "s1_x", "X", ("a",), no_work, no_gate)
    assert decide(bare, PINNED, GOOD, []).green
    assert not decide(bare, PINNED, GOOD[:1], []).green


@pytest.mark.parametrize(
    ("measured", "relation", "threshold", "ok"),
    [
        (1, "<=", 1, True),
        (2, "<=", 1, False),
        (1, ">=", 1, True),
        (0.5, ">=", 1, False),
        (True, "==", True, True),
        (1, "==", True, False),
        (1, "==", 1.0, True),
        ("a", "==", "a", True),
        ("a", "<=", "b", False),
        (True, ">=", 0, False),
        (float("nan"), "==", float("nan"), False),
        (float("inf"), ">=", 1, False),
        (float("-inf"), "<=", 1, False),
        (1, "<=", float("nan"), False),
        (None, "==", None, False),
        (None, "info", None, True),
        (float("nan"), "info", None, False),
    ],
)
def test_relations(measured: Measured, relation: str, threshold: Measured, ok: bool) -> None:
    assert holds(measured, relation, threshold) is ok


def test_numpy_scalars_become_plain_and_arrays_are_refused() -> None:
    made = Check.compare("x", np.float32(0.5), "<=", np.int64(1), "repeat")
    assert type(made.measured) is float and type(made.threshold) is int and made.ok
    assert Check.compare("x", np.bool_(True), "==", True).ok
    with pytest.raises(StageError, match="list"):
        Check.compare("x", [1, 2], "<=", 1)


def test_thresholds_depend_on_the_target() -> None:
    text = '[share]\nrelation = ">="\nthreshold = {cpu = 0.6, h200 = 0.9}\n'
    assert Thresholds.parse(text, "cpu")["share"].threshold == 0.6
    assert "share" not in Thresholds.parse(text, "other")


@pytest.mark.parametrize("text", ["[x", "x = 1", '[x]\nrelation = "<"\nthreshold = 1', '[x]\nrelation = "<="'])
def test_a_bad_thresholds_file_is_an_error(text: str) -> None:
    with pytest.raises(StageError):
        Thresholds.parse(text)
    with pytest.raises(StageError, match="no threshold for check"):
        PINNED.check("other", 1)

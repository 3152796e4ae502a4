"""The self-test sees a judge that is blind, and one that is red for everything."""

from __future__ import annotations

from pathlib import Path

import pytest
from boxes import green_box

from harness import selftest
from harness.cheats.sandbox import Sandbox
from harness.errors import BringUpError


def result(box: Sandbox, *groups: str) -> dict[str, object]:
    return selftest.run(box.root, box.stages, groups, lambda line: None)


def test_power_is_counted(tmp_path: Path) -> None:
    found = result(green_box(tmp_path), "gates")
    assert {k: found[k] for k in ("planted", "caught", "controls", "controls_green", "exit_code")} == {
        "planted": 1,
        "caught": 1,
        "controls": 1,
        "controls_green": 1,
        "exit_code": 0,
    }


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("abs(value - 1.0)", "0.0", "not caught"),
        ("abs(value - 1.0)", "1.0", "control is not green"),
        ("abs(value - 1.0)", "None if value == 2.0 else 0.0", ""),
        ("    bounds =", "    raise RuntimeError('oops')\n    bounds =", "RuntimeError: oops"),
    ],
)
def test_a_gate_without_power_is_found(tmp_path: Path, old: str, new: str, words: str) -> None:
    box = green_box(tmp_path)
    path = box.root / "stages/s1_demo/gate.py"
    path.write_text(path.read_text().replace(old, new))
    found = result(box, "gates")
    assert (found["exit_code"] == 0) is (words == "") and words in str(found["failures"])


def test_a_fault_caught_for_another_reason_or_by_a_missing_tool_is_not_caught(tmp_path: Path) -> None:
    box = green_box(tmp_path)
    init, gate = box.root / "stages/s1_demo/__init__.py", box.root / "stages/s1_demo/gate.py"
    text = init.read_text()
    init.write_text(text.replace('c), "error")', 'c), "tokens")'))
    assert "not caught" in str(result(box, "gates")["failures"])
    init.write_text(text.replace('c), "error")', 'c), "")'))
    gate.write_text(
        gate.read_text().replace(
            "    bounds =",
            "    from plow.errors import ToolMissing\n"
            "    if value > 1.5:\n        raise ToolMissing('no oracle')\n    bounds =",
        )
    )
    assert "not caught: ToolMissing" in str(result(box, "gates")["failures"])


def test_a_stage_that_plants_nothing_has_unknown_power(tmp_path: Path) -> None:
    box = green_box(tmp_path)
    init = box.root / "stages/s1_demo/__init__.py"
    init.write_text(init.read_text().replace("planted=(OFF,)", "planted=()"))
    found = result(box, "gates")
    assert found["exit_code"] == 2 and "plants nothing" in str(found["failures"])


HOOK = """from typing import NamedTuple


class Pair(NamedTuple):
    name: str

    def caught(self):
        return {caught}

    def control(self):
        return True


class Case(NamedTuple):
    name: str
    control: bool

    def run(self):
        return {caught}, "rejected", "packet 3"


def planted():
    return [Pair("pair"), Case("case", False), Case("control", True)]
"""


def test_other_rooms_plant_pairs_and_cases(tmp_path: Path) -> None:
    box = green_box(tmp_path)
    with pytest.raises(BringUpError, match="nothing to test for rewrites"):
        result(box, "rewrites")
    box.write("plow/rewrite/__init__.py", "")
    box.write("plow/rewrite/selftest.py", HOOK.format(caught=True))
    found = result(box, "rewrites")
    assert (found["planted"], found["caught"], found["controls"], found["controls_green"]) == (2, 2, 2, 2)
    box.write("plow/rewrite/selftest.py", HOOK.format(caught=False))
    found = result(box, "rewrites")
    assert (found["caught"], found["exit_code"]) == (0, 1)

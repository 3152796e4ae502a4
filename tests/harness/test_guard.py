"""What the guard lets through, and the parts of it that the cheats do not reach."""

from __future__ import annotations

from pathlib import Path

import pytest
from boxes import green_box

from harness import git, guard
from harness.cheats import Attempt, Cheat, catalogue

CHEATS = catalogue()
CONTROLS: dict[Attempt, list[str]] = {}
"""Several cheats have the same control; it runs once a process."""


@pytest.mark.parametrize("cheat", CHEATS, ids=lambda c: c.name)
def test_the_cheat_is_caught_and_its_control_is_green(cheat: Cheat, tmp_path: Path) -> None:
    box = green_box(tmp_path)
    if cheat.control not in CONTROLS:
        CONTROLS[cheat.control] = cheat.control(box.copy(tmp_path / "control"))
    control, found = CONTROLS[cheat.control], cheat.bad(box)
    assert control == [] and any(cheat.expect in line for line in found), (control, found)


def test_there_are_enough_cheats_and_no_two_alike() -> None:
    assert len(CHEATS) >= 24 and len({c.name for c in CHEATS}) == len(CHEATS)


def test_a_threshold_on_its_own_pull_request_is_a_notice_that_names_old_and_new(tmp_path: Path) -> None:
    box = green_box(tmp_path)
    path = "stages/s1_demo/thresholds.toml"
    box.write(path, (box.root / path).read_text().replace("0.001", "0.01"))
    box.commit()
    found = guard.compare(box.root, box.base, "HEAD")
    assert [(f.red, f.what) for f in found] == [(False, "edited (error: threshold 0.001 -> 0.01), on its own")]


def test_rules_come_from_the_base_so_unprotecting_does_not_help(tmp_path: Path) -> None:
    box = green_box(tmp_path)
    text = (box.root / "harness/protected.toml").read_text()
    box.write("harness/protected.toml", text.replace('"stages/**",', ""))
    box.write("stages/s1_demo/gate.py", "def gate(ctx): ...\n")
    box.candidate("2.0")
    assert {line.split(":")[1].strip() for line in box.guard()} == {"harness/protected.toml", "stages/s1_demo/gate.py"}


def test_a_stage_may_change_its_work_with_the_candidate(tmp_path: Path) -> None:
    box = green_box(tmp_path)
    box.append("stages/s1_demo/work.py", "\n# more\n")
    box.candidate("1.0", "\n# more\n")
    box.write("LESSONS.md", "learned\n")
    assert box.guard() == []


def test_a_removed_skip_mark_is_welcome_and_a_moved_one_too(tmp_path: Path) -> None:
    box = green_box(tmp_path)
    mark = "import pytest\n\n\n@pytest.mark.skip\ndef test_x() -> None: ...\n"
    box.write("tests/test_old.py", mark)
    box.base = box.commit()
    box.write("tests/test_old.py", mark.replace("@pytest.mark.skip\n", ""))
    assert box.guard() == []


def test_a_base_without_the_harness_protects_nothing_and_says_so(tmp_path: Path) -> None:
    box = green_box(tmp_path)
    git.git(box.root, "checkout", "--quiet", "--orphan", "early")
    git.git(box.root, "rm", "-r", "--quiet", "--cached", ".")
    git.git(box.root, "commit", "--quiet", "--allow-empty", "-m", "early", env=git.WHO)
    early = git.resolve(box.root, "HEAD")
    found = guard.compare(box.root, early, box.base)
    assert [(f.rule, f.red) for f in found] == [("baseline", False)]


@pytest.mark.parametrize(
    ("path", "target", "out"),
    [
        ("a", "b", False),
        ("a", "../b", True),
        ("x/a", "../b", False),
        ("x/a", "../../b", True),
        ("x/a", "/etc", True),
        ("x/y/a", "./../../b", False),
        ("x/a", "y/../../../b", True),
        ("x/a", "y/../b", False),
    ],
)
def test_links_are_followed_by_their_text(path: str, target: str, out: bool) -> None:
    assert guard.leaves(path, target) is out


def test_a_torn_line_of_the_base_may_be_repaired() -> None:
    lines = b'{"a"}\n{"b"}\n'
    assert not any("removed" in f for f in guard.ledger_faults(lines + b'{"to', lines + b'{"repair"}\n', "x"))
    assert any("1 of 2 kept" in f for f in guard.ledger_faults(lines, b'{"a"}\n', "x"))


def test_this_repository_protects_what_decides() -> None:
    rules = guard.parse_rules((Path(__file__).parents[2] / guard.RULES_FILE).read_text())
    for path in (
        "harness/guard.py",
        "harness/protected.toml",
        "stages/base.py",
        "stages/s1_ir/gate.py",
        "plow/errors.py",
        "stages/s4_tuning/thresholds.toml",
        "tests/conftest.py",
        "plow/oracle/numpy64.py",
        ".ci/run",
        "Makefile",
    ):
        assert rules.protects(path), path
    for path in (
        "plow/models/llama.py",
        "kernels/cpu/interp.c",
        "stages/s1_ir/work.py",
        "prompts/s1_ir.md.j2",
        "README.md",
    ):
        assert not rules.protects(path), path

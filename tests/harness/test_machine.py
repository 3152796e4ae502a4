"""A bring-up stops at the first red, goes on from any point, and ends in the same state however often it was killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from boxes import empty_box, green_box

from harness import gate, git, ledger
from harness.cheats.sandbox import ARCH, TARGET, Sandbox, judge_here, nothing
from harness.child import Outcome
from harness.errors import BringUpError
from harness.machine import BringUp, Request
from harness.state import State, fold


def started(box: Sandbox, home: Path | None = None, **params: Any) -> BringUp:
    """A bring-up whose work is nothing and whose gates run here."""
    bringup = BringUp(home or box.home, box.root, box.stages, work_with=nothing, judge_with=judge_here)
    bringup.start(Request(ARCH, TARGET, str(box.root / "checkpoint"), params))
    return bringup


def kinds(bringup: BringUp, stage: int) -> list[str]:
    return [line.kind for line in ledger.read(bringup.path) if line.data.get("stage") == stage]


def outcome(state: State) -> dict[str, Any]:
    """What must not depend on kills: everything but times and the number of lines."""
    stages = {n: {k: v for k, v in vars(s).items() if k not in ("time", "seconds")} for n, s in state.stages.items()}
    return {
        "arch": state.arch,
        "checkpoint": state.checkpoint,
        "base": state.base,
        "params": dict(state.params),
        "stages": stages,
    }


STEPS = ["work_start", "prompt", "work_done", "gate_start", "verdict"]


def test_a_run_walks_through_all_stages_and_records_each_step(tmp_path: Path) -> None:
    bringup = started(empty_box(tmp_path))
    assert bringup.run() == 0
    assert [kinds(bringup, n) for n in (1, 2)] == [STEPS, STEPS]
    assert all(s.status == "green" for s in bringup.state().stages.values())
    assert bringup.run() == 0 and kinds(bringup, 1) == STEPS, "nothing is done twice"


def test_it_stops_at_the_first_red_and_goes_on_once_that_is_repaired(tmp_path: Path) -> None:
    box = empty_box(tmp_path)
    box.candidate("2.0")
    box.commit()
    bringup = started(box)
    assert bringup.run() == 1
    state = bringup.state()
    assert (state.stage(1).status, state.stage(2).status) == ("red", "pending")
    assert "prompt 1" in bringup.next_command()
    box.candidate("1.0")
    box.commit()
    assert "error: measured 1, must be <= 0.001" in bringup.state().stage(1).reasons[0]
    assert bringup.run() == 0
    assert kinds(bringup, 1) == STEPS * 2, "red work is done again"


def test_through_stops_early(tmp_path: Path) -> None:
    bringup = started(empty_box(tmp_path))
    assert bringup.run(through=1) == 0
    assert bringup.state().stage(2).status == "pending"
    with pytest.raises(BringUpError, match="no stage 5"):
        bringup.gate(5)


def test_a_stage_is_not_judged_before_the_ones_it_stands_on(tmp_path: Path) -> None:
    bringup = started(empty_box(tmp_path))
    with pytest.raises(BringUpError, match="stage 1 is pending"):
        bringup.gate(2)
    bringup.run(through=1)
    assert bringup.gate(2).green


def test_other_sources_or_params_or_checkpoint_make_green_stale(tmp_path: Path) -> None:
    box = empty_box(tmp_path)
    bringup = started(box)
    bringup.run()
    started(box, rows=8)
    assert {s.status for s in bringup.state().stages.values()} == {"stale"}
    started(box)
    assert {s.status for s in bringup.state().stages.values()} == {"green"}
    box.write("checkpoint/config.json", '{"hidden_size": 8}\n')
    assert bringup.state().stage(1).status == "stale"
    box.write("checkpoint/config.json", "{}\n")
    box.append("stages/s2_demo/gate.py", "\n# note\n")
    box.commit()
    assert [bringup.state().stage(n).status for n in (1, 2)] == ["green", "stale"]
    (box.root / "checkpoint/config.json").unlink()
    assert bringup.state().stage(1).status == "stale"


def test_new_again_continues_and_another_checkpoint_is_refused(tmp_path: Path) -> None:
    box = empty_box(tmp_path)
    started(box)
    lines = len(ledger.read(started(box).path))
    assert lines == 1
    (tmp_path / "other").mkdir()
    with pytest.raises(BringUpError, match="another checkpoint"):
        BringUp(box.home, box.root, box.stages).start(Request(ARCH, TARGET, str(tmp_path / "other")))
    with pytest.raises(BringUpError, match="bad name"):
        BringUp(box.home, box.root, box.stages).start(Request("../x", TARGET, str(tmp_path / "other")))


def test_failed_work_is_red_with_its_reason_and_is_not_judged(tmp_path: Path) -> None:
    bringup = started(empty_box(tmp_path))
    bringup.work_with = lambda *args: Outcome(None, "ended (signal SIGSEGV) without a report", 0.0)
    assert bringup.run() == 1
    assert kinds(bringup, 1)[-1] == "work_failed" and "SIGSEGV" in bringup.state().stage(1).reasons[0]


def test_the_guard_turns_a_gate_red_when_a_base_is_given(tmp_path: Path) -> None:
    box = green_box(tmp_path)
    box.candidate("1.0", "\n# better\n")
    box.append("stages/s1_demo/gate.py", "\n# weaker\n")
    box.commit()
    assert box.bringup.gate(1).green
    verdict = box.bringup.gate(1, base=box.base)
    assert not verdict.green and "stages/s1_demo/gate.py" in verdict.reasons[0]
    assert box.bringup.state().stage(1).status == "red"


def test_an_allowed_dirty_tree_is_recorded_and_goes_stale_when_it_is_clean(tmp_path: Path) -> None:
    box = green_box(tmp_path)
    box.candidate("1.0", "\n# not committed\n")
    assert box.bringup.gate(1, allow_dirty=True).green
    last = fold(ledger.read(box.ledger)).stage(1)
    assert last.dirty and last.status == "green"
    box.candidate("1.0")
    assert box.bringup.state().stage(1).status == "stale"


# Kills: a child runs the bring-up and dies at its n-th write, fsync or rename; if torn, in the middle of the write.

SYSCALLS = ("write", "pwrite", "fsync", "rename", "ftruncate")


def die_at(count: int, torn: bool) -> Callable[[], int]:
    """Arm this process to die at system call number `count`; the returned function tells how many there were."""
    seen = 0

    def arm(name: str) -> None:
        real = getattr(os, name)

        def call(*args: Any) -> Any:
            nonlocal seen
            seen += 1
            if seen == count:
                if torn and name in ("write", "pwrite"):
                    real(args[0], bytes(args[1])[: len(args[1]) // 2], *args[2:])
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args)

        setattr(os, name, call)

    for name in SYSCALLS:
        arm(name)
    return lambda: seen


def fixed(bringup: BringUp) -> BringUp:
    """With a subject that is looked up once: kills are about what is written, not about git."""
    subject = gate.Subject(
        bringup.repo, git.resolve(bringup.repo, "HEAD"), ARCH, TARGET, bringup.repo / "checkpoint", "digest"
    )
    bringup.subject = lambda *a, **k: subject  # type: ignore[method-assign]
    return bringup


def run_and_die(box: Sandbox, home: Path, count: int, torn: bool) -> bool:
    """Whether a forked run was killed (rather than finished)."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            die_at(count, torn)
            code = fixed(started(box, home)).run()
        finally:
            os._exit(code)
    return os.WIFSIGNALED(os.waitpid(pid, 0)[1])


@pytest.mark.parametrize("torn", [False, True])
def test_a_kill_at_any_write_is_followed_by_the_same_final_state(
    tmp_path: Path, torn: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    box = empty_box(tmp_path)
    monkeypatch.setattr(os, "fsync", lambda fd: None)  # a killed process loses nothing that the kernel has; only time
    monkeypatch.setattr(git, "resolve", lambda repo, ref: box.base)
    reference = fixed(started(box, tmp_path / "whole" / ARCH / TARGET))
    assert reference.run() == 0
    expected = outcome(fold(ledger.read(reference.path)))
    points = 0
    for count in range(1, 500):
        home = tmp_path / f"k{count}" / ARCH / TARGET
        if not run_and_die(box, home, count, torn):
            break
        points += 1
        again = fixed(started(box, home))
        assert again.run() == 0, f"kill point {count}"
        assert outcome(fold(ledger.read(again.path))) == expected, f"kill point {count}"
        for number in (1, 2):
            steps = kinds(again, number)
            done = steps.index("work_done")
            assert "work_start" not in steps[done:] and steps.count("verdict") == 1, f"kill point {count}: {steps}"
    assert points > 40


def cli(box: Sandbox, *args: str) -> list[str]:
    return [sys.executable, "-m", "harness.cli", *args]


@pytest.mark.parametrize("during", ["work", "gate"])
def test_kill_9_of_the_command_during_a_step_then_resume(tmp_path: Path, during: str) -> None:
    box = empty_box(tmp_path, stages=1)
    env = {**os.environ, "PYTHONPATH": str(box.root)}
    command = cli(box, "new", ARCH, "--checkpoint", "checkpoint", "--set", f"{during}_sleep=1.2")
    first = subprocess.Popen(command, cwd=box.root, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_for(box.ledger, f'"kind":"{during}_start"')
    time.sleep(0.3)
    first.send_signal(signal.SIGKILL)
    first.wait()
    done = subprocess.run(
        cli(box, "resume", "--json"), cwd=box.root, env=env, capture_output=True, text=True, check=False
    )
    result = json.loads(done.stdout)
    assert done.returncode == 0 and result["green"] and result["schema"] == "plow.run/1", done.stderr
    steps = [line.kind for line in ledger.read(box.ledger) if line.data.get("stage") == 1]
    again = ["work_start", "prompt", *STEPS] if during == "work" else [*STEPS[:4], "gate_start", "verdict"]
    assert steps == again


def wait_for(path: Path, text: str, within_s: float = 20.0) -> None:
    stop = time.monotonic() + within_s
    while not (path.exists() and text in path.read_text()):
        assert time.monotonic() < stop, f"{text} never came"
        time.sleep(0.02)

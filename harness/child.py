"""Start harness.judge in a checkout: isolated interpreter, allow-listed environment, own process group, time limit."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from harness.judge import RS
from stages.base import Progress, StageContext

KEPT = (
    "PATH",
    "HOME",
    "USER",
    "LANG",
    "LC_ALL",
    "TZ",
    "TMPDIR",
    "TERM",
    "LD_LIBRARY_PATH",
    "SSL_CERT_FILE",
    "CUDA_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
)
"""All that a judged process inherits; PLOW_*, PYTHON*, LD_PRELOAD, GIT_* and thread-count knobs stay behind."""

BOOT = (
    "import runpy, sys; sys.path.insert(0, sys.argv.pop(1)); "
    "runpy.run_module('harness.judge', run_name='__main__', alter_sys=True)"
)
STARTUP_FILES = ("sitecustomize.py", "usercustomize.py", "sitecustomize", "usercustomize")


@dataclass(frozen=True)
class Outcome:
    """result: what the judge wrote, None when it wrote nothing valid; then `failure` says how it ended."""

    result: dict[str, Any] | None
    failure: str
    seconds: float


def scrubbed(root: Path) -> dict[str, str]:
    """Environment of a judge. It ignores PYTHON* itself (-I); PYTHONPATH is for processes that a gate starts."""
    return {k: os.environ[k] for k in KEPT if k in os.environ} | {"PYTHONPATH": str(root), "PYTHONNOUSERSITE": "1"}


def run_judge(
    root: Path, number: int, job: str, ctx: StageContext, limit_s: float, log: Path, progress: Progress | None = None
) -> Outcome:
    """Run one job of a stage with `root` as the only place its code is imported from.

    The result must carry the nonce that only the request had, so a file prepared beforehand does not count.
    """
    hooks = [name for name in STARTUP_FILES if (root / name).exists()]
    if hooks:
        return Outcome(None, f"{hooks[0]} in the checkout would run before the judge", 0.0)
    nonce, start = secrets.token_hex(16), time.monotonic()
    log.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="judge-", dir=log.parent) as folder, log.open("a") as sink:
        out = Path(folder) / "result.json"
        command = [sys.executable, "-I", "-B", "-c", BOOT, str(root), "--stage", str(number), "--out", str(out)]
        child = subprocess.Popen(
            command,
            cwd=root,
            env=scrubbed(root),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            text=True,
            errors="replace",
        )
        try:
            ended = _converse(child, {"nonce": nonce, "job": job, "context": fields(ctx)}, limit_s, sink, progress)
        finally:
            _end_group(child)
        if not ended:
            return Outcome(None, f"over its time limit of {limit_s:g} s", time.monotonic() - start)
        result = _read_result(out, nonce)
    failure = "" if result is not None else f"ended ({_status(child.returncode)}) without a report: {_last_line(log)}"
    return Outcome(result, failure, time.monotonic() - start)


def fields(ctx: StageContext) -> dict[str, Any]:
    return {
        "arch": ctx.arch,
        "target": ctx.target,
        "checkpoint": str(ctx.checkpoint),
        "workdir": str(ctx.workdir),
        "evidence": str(ctx.evidence),
        "root": str(ctx.root),
        "params": ctx.params,
    }


def _converse(
    child: subprocess.Popen[str], request: dict[str, Any], limit_s: float, sink: IO[str], progress: Progress | None
) -> bool:
    """Send the request, follow the output; False when the time limit ended it. stdin stays open until the end."""
    assert child.stdin and child.stdout
    follower = threading.Thread(target=_follow, args=(child.stdout, sink, progress or (lambda text, done=None: None)))
    follower.start()
    try:
        child.stdin.write(json.dumps(request) + "\n")
        child.stdin.flush()
        child.wait(limit_s)
        return True
    except BrokenPipeError:  # it died before it read its request; its exit status says how
        child.wait()
        return True
    except subprocess.TimeoutExpired:
        return False
    finally:
        _signal_group(child)
        follower.join()


def _follow(output: IO[str], sink: IO[str], progress: Callable[..., None]) -> None:
    for line in output:
        if line.startswith(RS):
            try:
                update = json.loads(line[1:])
                progress(str(update["text"]), update["done"])
                continue
            except (ValueError, KeyError, TypeError):
                pass  # a stage printed RS itself: it is log
        sink.write(line)
        sink.flush()


def _signal_group(child: subprocess.Popen[str]) -> None:
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _end_group(child: subprocess.Popen[str]) -> None:
    """Nothing a gate started outlives it: a straggler could still write, or disturb the next measurement."""
    _signal_group(child)
    child.wait()
    for pipe in (child.stdin, child.stdout):
        if pipe:
            try:
                pipe.close()
            except BrokenPipeError:
                continue


def _read_result(path: Path, nonce: str) -> dict[str, Any] | None:
    try:
        document = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    good = isinstance(document, dict) and document.get("schema") == "plow.judge/1" and document.get("nonce") == nonce
    return document if good else None


def _last_line(log: Path) -> str:
    """The end of the log: after a crash, the exception."""
    text = log.read_text(errors="replace").strip().rpartition("\n")[2]
    return text[-200:] or f"it printed nothing to {log}"


def _status(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"

"""The process that runs a stage's code: `python -m harness.judge --stage N --out FILE`, one JSON request line on stdin.

It measures and writes down; the process that started it decides. The request names the job (`gate`, `work`, `planted`,
`hook` or `describe`) and the StageContext. stdin stays open as a lifeline: when the parent dies, the process group
ends.
Progress goes to stdout as RS-prefixed JSON (RFC 7464), everything else printed there is log.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

from plow.errors import PlowError
from stages.base import GateReport, Stage, StageContext, StageError

RS = "\x1e"


def progress(text: str, done: float | None = None) -> None:
    sys.stdout.write(f"{RS}{json.dumps({'text': text, 'done': done})}\n")
    sys.stdout.flush()


def end_with_parent(lifeline: int) -> None:
    """Block until the parent closes its end of stdin, then end this process and all it started."""
    while os.read(lifeline, 1024):
        pass
    os.killpg(os.getpgrp(), signal.SIGKILL)


def environment() -> dict[str, Any]:
    """What a reader must know to compare measured values, and code that Python ran before ours."""
    hooks = sorted(
        p.name for folder in sys.path if folder.endswith("site-packages") for p in Path(folder).glob("*.pth")
    )
    custom = [m.__file__ for n in ("sitecustomize", "usercustomize") if (m := sys.modules.get(n)) and m.__file__]
    return {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "site_hooks": [*hooks, *custom],
    }


def context(raw: dict[str, Any]) -> StageContext:
    paths = {k: Path(raw[k]) for k in ("checkpoint", "workdir", "evidence", "root")}
    return StageContext(raw["arch"], raw["target"], params=raw["params"], **paths)


def load_stage(number: int, root: Path) -> Stage:
    """The stage as the checkout `root` defines it. Raises StageError when Python would import it from elsewhere."""
    import stages

    for module in (stages, sys.modules["plow"], sys.modules["plow.errors"]):
        if not Path(str(module.__file__)).resolve().is_relative_to(root.resolve()):
            raise StageError(
                f"{module.__name__} is imported from outside the checkout", str(module.__file__), f"expected {root}"
            )
    for stage in stages.STAGES:
        if stage.number == number:
            return stage
    raise StageError(f"no stage {number}", "stages/", f"there are {[s.number for s in stages.STAGES]}")


def report_fields(report: Any) -> dict[str, Any]:
    if not isinstance(report, GateReport):
        raise StageError(f"a gate returns a GateReport, got {type(report).__name__}", "", "fix the gate")
    return {"checks": [asdict(c) for c in report.checks], "not_run": list(report.not_run)}


DESCRIBED = (
    "number",
    "name",
    "title",
    "sources",
    "checks",
    "headline",
    "editable",
    "timed",
    "gate_limit_s",
    "work_limit_s",
)


def describe() -> dict[str, Any]:
    """Every stage's definition without its code, for a process that must not run any."""
    from stages import STAGES

    return {"stages": [{key: getattr(stage, key) for key in DESCRIBED} for stage in STAGES]}


def run_planted(stage: Stage, ctx: StageContext) -> dict[str, Any]:
    """Raw reports of every planted subject and its control; a typed error of the bad subject is reported as such."""
    results = []
    for i, planted in enumerate(stage.planted):
        sides: dict[str, Any] = {"name": planted.name, "expect": planted.expect}
        for side, make in (("bad", planted.make_bad), ("control", planted.control)):
            progress(f"{planted.name}: {side}", i / len(stage.planted))
            folder = ctx.workdir / f"{i}-{side}"
            folder.mkdir(parents=True)
            try:
                sides[side] = report_fields(make(StageContext(**{**ctx.__dict__, "workdir": folder})))
            except PlowError as e:
                sides[side] = {"error": error_fields(e)}
        results.append(sides)
    return {"planted": results}


def run_hook(module: str) -> dict[str, Any]:
    """Planted subjects of a room without stages: `planted()` of its selftest module.

    An item is one case, `run()` -> (ok, verdict, reason) with its kind in `control`, or a pair `caught()`, `control()`.
    """
    results = []
    for item in import_module(module).planted():
        if hasattr(item, "run"):
            results.append(hook_case(item.name, item.control, item.run))
        else:
            results.append(hook_case(item.name, False, item.caught))
            results.append(hook_case(item.name, True, item.control))
    return {"hook": results}


def hook_case(name: str, control: bool, run: Callable[[], Any]) -> dict[str, Any]:
    progress(name)
    try:
        found = run()
    except PlowError as e:
        found = (False, "error", e.line())
    ok, *words = found if isinstance(found, tuple) else (found,)
    return {"name": name, "control": control, "ok": ok is True, "detail": " ".join(map(str, words)).strip()}


def error_fields(error: PlowError) -> dict[str, Any]:
    return {**error.as_dict(), "line": error.line(), "exit_code": error.exit_code}


def do(job: str, number: int, ctx: StageContext) -> dict[str, Any]:
    """Run the job; a typed error is a result, anything else a crash that ends the process, its traceback in the log."""
    try:
        if job == "describe":
            return describe()
        if job == "hook":
            return run_hook(ctx.params["module"])
        stage = load_stage(number, ctx.root)
        if job == "planted":
            return run_planted(stage, ctx)
        if job == "work":
            stage.work(ctx, progress)
            return {}
        return report_fields(stage.gate(ctx))
    except PlowError as e:
        return {"error": error_fields(e)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stage", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True, help="where the result goes")
    args = parser.parse_args()
    request = json.loads(_first_line(sys.stdin.fileno()))
    threading.Thread(target=end_with_parent, args=(sys.stdin.fileno(),), daemon=True).start()
    result = do(request["job"], args.stage, context(request["context"]))
    document = {"schema": "plow.judge/1", "nonce": request["nonce"], "environment": environment(), **result}
    temp = args.out.with_suffix(".tmp")
    temp.write_text(json.dumps(document))
    temp.rename(args.out)


def _first_line(fd: int) -> bytes:
    """Unbuffered, so that the lifeline thread owns every byte after it."""
    raw = b""
    while not raw.endswith(b"\n"):
        byte = os.read(fd, 1)
        if not byte:
            raise SystemExit("harness.judge: no request on stdin; it is started by `plow-bringup gate`")
        raw += byte
    return raw


if __name__ == "__main__":
    main()

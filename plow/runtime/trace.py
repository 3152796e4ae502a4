"""Where a step on the GPU goes: the marks of every packet as a table, a Perfetto file and a picture.

    python -m plow.runtime.trace BUNDLE [--batch 1] [--context 512] [--out trace.json] [--svg trace.svg]

Not for speed: the marks themselves cost time. `plowrt bench` measures a step without them.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from plow.errors import PlowError, RequestError
from plow.runtime.bundle import Bundle
from plow.runtime.cuda import CudaBackend
from plow.runtime.cuda_bench import case, prefill
from plow.runtime.llm import LLM
from plow.runtime.trace_picture import chrome_trace, timeline_svg
from plow.runtime.trace_step import Leg, Step, Traced, step_of

DIAGNOSIS = {"no_waits": 1, "no_math": 2, "no_attention": 4, "no_loads": 8}
"""Switches of kernels/cuda/params.h (enum Diagnosis)."""
WRONG = "results are wrong by design"
MIN_STEPS = 2
"""The traced step has one before it, as steps usually have."""

# -- the table ---------------------------------------------------------------------------------------------------------
HEAD = ("operator", "packets", "MB read", "floor us", "on the path us", "share", "wait us", "work us")


def report(step: Step, ceiling: float) -> dict[str, Any]:
    """The step against its floor (bytes over `ceiling`, bytes a second), and each operator family's part of both.

    span_us: the family's part of the critical path; wait_us, work_us: mean of a packet that has these marks, else None;
    overlap_us: from the first mark to the step's begin.
    """
    packets, legs = step.packets, step.legs
    rows = [
        _row(step, name, [p for p in packets if p.family == name], [g for g in legs if g.family == name], ceiling)
        for name in dict.fromkeys(g.family for g in legs)
    ]
    total = _row(step, "step", packets, legs, ceiling)
    size, us = total["bytes"], step.ns / 1e3
    whole = {
        "us": us,
        "floor_us": total["floor_us"],
        "pct_of_floor": total["floor_us"] / us * 100 if us else 0.0,
        "bytes": size,
        "gb_s": size / us / 1e3 if us else 0.0,
        "overlap_us": step.begin / 1e3,
    }
    return {"step": whole, "families": rows, "sum": total}


def _row(step: Step, name: str, packets: list[Traced], legs: list[Leg], ceiling: float) -> dict[str, Any]:
    size, span = sum(p.bytes for p in packets), sum(g.end - g.begin for g in legs)
    return {
        "family": name,
        "packets": len(packets),
        "bytes": size,
        "floor_us": size / ceiling * 1e6,
        "span_us": span / 1e3,
        "share": span / step.ns if step.ns else 0.0,
        "wait_us": _mean_us(p.wait for p in packets),
        "work_us": _mean_us(p.work for p in packets),
    }


def _mean_us(values: Iterable[int | None]) -> float | None:
    known = [v for v in values if v is not None]
    return fmean(known) / 1e3 if known else None


def table(found: dict[str, Any]) -> list[tuple[str, ...]]:
    """Cells below HEAD of a report, the sum last."""
    lines = []
    for r in [*found["families"], found["sum"]]:
        mean = ["-" if r[k] is None else f"{r[k]:.2f}" for k in ("wait_us", "work_us")]
        lines.append((r["family"], str(r["packets"]), f"{r['bytes'] / 1e6:.1f}", f"{r['floor_us']:.1f}",
                      f"{r['span_us']:.1f}", f"{r['share']:.1%}", *mean))  # fmt: skip
    return lines


def headline(found: dict[str, Any]) -> str:
    s = found["step"]
    return (f"{s['us']:.1f} us a step, floor {s['floor_us']:.1f} us = {s['pct_of_floor']:.1f} % "
            f"({s['gb_s']:.0f} of {found['ceiling_gbs']:.0f} GB/s, {found['ceiling_source']})")  # fmt: skip


# -- measuring ---------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Asked:
    """batch: sequences, each with `context` positions before the traced step's; that is the last of a launch of `steps`
    steps. diagnosis: names of DIAGNOSIS; ceiling_gbs: GB/s that the floor is counted with, 0 = the bundle's machine."""

    batch: int = 1
    context: int = 512
    steps: int = 5
    diagnosis: tuple[str, ...] = ()
    ceiling_gbs: float = 0.0


def run_trace(llm: LLM, asked: Asked, out: Path | None = None, svg: Path | None = None) -> dict[str, Any]:
    """Trace a step; write the Perfetto file and the picture that are asked for. Returns a report with schema
    plowrt.trace/1. Raises RequestError for a bundle or a question that cannot be traced, TraceError, DeviceError."""
    for path in (out, svg):
        if path and not path.parent.is_dir():
            raise RequestError("no such directory", str(path.parent), "make it, or write somewhere else")
    rate, source = ceiling(llm.bundle, asked.ceiling_gbs)
    program, step = _measure(llm, asked)
    note = f"{', '.join(asked.diagnosis)}: {WRONG}" if asked.diagnosis else ""
    title = f"program T={llm.bundle.packets.programs[program].rows}, batch {asked.batch}, context {asked.context}"
    title += f" [{note}]" if note else ""
    found = {
        "schema": "plowrt.trace/1",
        "bundle": {"path": str(llm.bundle.path), "packets_sha256": llm.bundle.packet_digest,
                   "certified": llm.bundle.certified, "synthetic": llm.bundle.synthetic},
        "program": program, "batch": asked.batch, "context": asked.context, "steps": asked.steps,
        "diagnosis": list(asked.diagnosis), "note": note,
        "ceiling_gbs": rate / 1e9, "ceiling_source": source,
        **report(step, rate),
        "files": {k: str(v) for k, v in {"trace": out, "svg": svg}.items() if v},
    }  # fmt: skip
    if out:
        notes = {k: found[k] for k in ("batch", "context", "note", "step")}
        _write(out, json.dumps(chrome_trace({title: step}, notes), separators=(",", ":")))
    if svg:
        _write(svg, timeline_svg(step, title))
    return found


def _measure(llm: LLM, asked: Asked) -> tuple[int, Step]:
    """Index of the program, and the traced step."""
    backend, limits = llm.backend, llm.bundle.limits
    if not isinstance(backend, CudaBackend):
        raise RequestError(f"a bundle for {llm.bundle.target!r} marks no packets", str(llm.bundle.path),
                           "trace one that was built with plowc --gpu h200")  # fmt: skip
    if asked.batch < 1 or asked.steps < MIN_STEPS or not asked.steps - 1 <= asked.context < limits.max_ctx:
        what = f"batch {asked.batch}, {asked.steps} steps that end at position {asked.context} do not fit"
        fix = f"at least 1 and {MIN_STEPS}, and a context from steps - 1 to {limits.max_ctx - 1}"
        raise RequestError(what, "trace", fix)
    c = case(llm, asked.batch, asked.context + 2 - asked.steps)  # its last prompt token is the first step's input
    batch = prefill(backend, c, asked.steps - 1)
    backend.flags, before = sum(DIAGNOSIS[name] for name in asked.diagnosis), backend.flags
    try:
        marks = backend.trace(c.program, batch, asked.steps)
    finally:
        backend.flags = before
    packets = llm.bundle.packets
    return c.program, step_of(packets.programs[c.program], packets.nodes, marks, asked.batch, asked.context)


def ceiling(bundle: Bundle, gbs: float) -> tuple[float, str]:
    """(bytes a second that memory can give, where the number is from): what was asked for, else the read bandwidth of
    the machine that the bundle was built for. Raises RequestError when there is none."""
    machine = bundle.manifest.get("machine")
    if gbs:
        rate, source = gbs * 1e9, "as given"
    elif isinstance(machine, dict):
        rate, source = float(machine.get("read_bytes_per_s", 0)), f"spec of {machine.get('name')}"
    else:
        rate, source = 0.0, ""
    if not rate > 0:
        raise RequestError("no bandwidth to count a floor with", str(bundle.path), "give --ceiling-gbs")
    return rate, source


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, "utf-8")
    except OSError as e:
        raise RequestError(f"cannot write: {e.strerror}", str(path), "write somewhere else") from None


def main(argv: Sequence[str] | None = None) -> int:
    """The command line without the packages that `plowrt` needs; exit codes are the same."""
    p = argparse.ArgumentParser(prog="python -m plow.runtime.trace", description=(__doc__ or "").split("\n")[0])
    p.add_argument("bundle", type=Path)
    p.add_argument("--batch", type=int, default=Asked.batch)
    p.add_argument("--context", type=int, default=Asked.context, help="positions before the traced step's")
    p.add_argument("--steps", type=int, default=Asked.steps, help="of the launch; the last one is traced")
    p.add_argument("--ceiling-gbs", type=float, default=0.0, help="default: the machine that the bundle was built for")
    p.add_argument("--out", type=Path, help="Perfetto file")
    p.add_argument("--svg", type=Path, help="picture of one layer")
    p.add_argument("--json", action="store_true", help="one JSON object on stdout")
    for name in DIAGNOSIS:
        p.add_argument(f"--{name.replace('_', '-')}", action="store_true", help=f"diagnosis: {WRONG}")
    a = p.parse_args(argv)
    asked = Asked(a.batch, a.context, a.steps, tuple(n for n in DIAGNOSIS if getattr(a, n)), a.ceiling_gbs)
    try:
        llm = LLM(a.bundle, allow_uncertified=True)
        try:
            found = run_trace(llm, asked, a.out, a.svg)
        finally:
            llm.close()
    except PlowError as e:
        print(f"error: {e.line()}", file=sys.stderr)
        return e.exit_code
    if a.json:
        print(json.dumps(found))
        return 0
    if found["note"]:
        print(found["note"])
    print(headline(found))
    for cells in (HEAD, *table(found)):
        print(f"{cells[0]:<14}" + "".join(f"{c:>16}" for c in cells[1:]))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Measure one check of a gate again: `python -m stages.repeat STAGE --checkpoint DIR [--check NAME] [--seed N]`.

It runs the gate's code in this process and prints what it measured. A verdict comes from `plow-bringup gate` only.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from plow.errors import PlowError
from stages import STAGES
from stages.base import Check, Stage, StageContext


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", type=int, choices=[s.number for s in STAGES])
    parser.add_argument("--checkpoint", type=Path, required=True, help="Hugging Face directory")
    parser.add_argument("--target", default="cpu")
    parser.add_argument("--check", help="only the part that measures this check")
    parser.add_argument("--seed", type=int, help="of random inputs; fresh without it")
    parser.add_argument("--artifacts", type=Path, help="what `work` left (default: none)")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    args = parser.parse_args()
    stage = next(s for s in STAGES if s.number == args.stage)
    if args.check and args.check not in stage.checks:
        parser.error(f"stage {stage.number} has no check {args.check!r}; it has: {', '.join(stage.checks)}")
    try:
        return _run(stage, args)
    except PlowError as e:
        print(f"{e.kind}: {e.line()}", file=sys.stderr)
        return e.exit_code


def _run(stage: Stage, args: argparse.Namespace) -> int:
    params = {k: v for k, v in {"only": args.check, "seed": args.seed}.items() if v is not None}
    with tempfile.TemporaryDirectory(prefix="plow-repeat-") as folder:
        work = Path(folder)
        evidence = args.artifacts.parent / "evidence" if args.artifacts else work / "none" / "evidence"
        root = Path(__file__).parents[1]
        ctx = StageContext(args.checkpoint.resolve().name, args.target, args.checkpoint, work, evidence, root, params)
        report = stage.gate(ctx)
    if args.json:
        checks = [asdict(c) for c in report.checks]
        print(
            json.dumps({"schema": "plow.repeat/1", "stage": stage.number, "checks": checks, "not_run": report.not_run})
        )
    else:
        print("\n".join([*map(_line, report.checks), *(f"not run  {n}" for n in report.not_run)]))
    return 0 if report.checks and all(c.ok for c in report.checks) else 1


def _line(c: Check) -> str:
    value = f"{c.measured:.4g}" if isinstance(c.measured, float) else str(c.measured)
    bound = "" if c.relation == "info" else f" {c.relation} {c.threshold}"
    return f"{'ok ' if c.ok else 'RED'}  {c.name}  {value}{bound}{f'  ({c.detail})' if c.detail else ''}"


if __name__ == "__main__":
    sys.exit(main())

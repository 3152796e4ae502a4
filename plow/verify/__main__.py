"""python -m plow.verify: certify or check a bundle, audit the Lean library, run the self-test, print a payload."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from plow.errors import PlowError
from plow.packet import container
from plow.verify import audit, certificate, selftest
from plow.verify.registry import CHECKPOINTS


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m plow.verify", description=__doc__)
    parser.add_argument("command", choices=["certify", "check", "audit", "self-test", "payload"])
    parser.add_argument("bundle", type=Path, nargs="?", help="bundle directory")
    parser.add_argument("--checkpoint", default="D", help="letter, for certify and payload")
    parser.add_argument("--program", type=int, default=0, help="index, for payload")
    args = parser.parse_args(argv)
    if args.bundle is None and args.command in ("certify", "check", "payload"):
        parser.error(f"{args.command} needs a bundle directory")
    try:
        return _run(args)
    except PlowError as e:
        print(json.dumps(e.as_dict()))
        print(f"{e.kind}: {e.line()}", file=sys.stderr)
        return e.exit_code


def _run(args: argparse.Namespace) -> int:
    def progress(line: str) -> None:
        print(line, file=sys.stderr)

    if args.command == "payload":
        checkpoint = CHECKPOINTS[args.checkpoint]
        subjects = checkpoint.build(container.load(args.bundle / "model.pkt")) if checkpoint.build else []
        print(checkpoint.source(subjects[args.program]), end="")
        return 0
    if args.command == "certify":
        packets, out = args.bundle / "model.pkt", args.bundle / "certificates"
        certificates = certificate.certify(packets, out, [args.checkpoint], progress)
        return _say({"schema": "plow.verify/1", "certificates": [asdict(c) for c in certificates]}, True)
    if args.command == "check":
        states = certificate.check_bundle(args.bundle)
        return _say({"schema": "plow.verify/1", "certificates": [asdict(c) for c in states]},
                    all(c.verdict in ("certified", "not_run") for c in states))
    if args.command == "audit":
        findings = audit.audit()
        return _say({"schema": "plow.audit/1", "findings": [asdict(f) for f in findings]}, not findings)
    file = container.load(args.bundle / "model.pkt") if args.bundle else None
    result = selftest.run_all(file, progress)
    return _say(result, result["planted"] == result["caught"] and result["controls"] == result["controls_green"])


def _say(answer: dict[str, Any], good: bool) -> int:
    print(json.dumps(answer))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())

"""The arm protocol: a process that answers JSON lines; the judge keeps the clock, the arm never sees it.

    {"cmd": "prepare", "what": "decode", "prompts": [[ids] ...], "steps": n}  -> {"ok": true}   prompts are processed
    {"cmd": "prepare", "what": "prompt", "prompts": [[ids]]}                  -> {"ok": true}
    {"cmd": "go"}                                                            -> {"tokens": [[ids] ...]}
    {"cmd": "info"}                                                          -> versions and settings

decode: after `prepare` the caches hold the prompts and each sequence's first token is known; `go` makes `steps` more
tokens a sequence and returns them. prompt: `go` processes the prompt and returns the one token that follows.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from plow.errors import PlowError, ToolMissing


class ArmFailed(PlowError):
    """An arm's process ended or answered something else than the protocol says."""

    exit_code = 1


def serve(prepare: Callable[[dict[str, Any]], None], go: Callable[[], list[list[int]]], info: dict[str, Any]) -> None:
    """Loop of an arm: read commands from stdin until it closes. Answers go to the original stdout."""
    out = sys.stdout
    sys.stdout = sys.stderr
    out.write(json.dumps({"ready": True}) + "\n")
    out.flush()
    for text in sys.stdin:
        request = json.loads(text)
        if request["cmd"] == "prepare":
            prepare(request)
            answer: dict[str, Any] = {"ok": True}
        elif request["cmd"] == "go":
            answer = {"tokens": go()}
        else:
            answer = info
        out.write(json.dumps(answer) + "\n")
        out.flush()


class Arm:
    """The judge's end of an arm. command: argv of the process; its stderr is kept for the error message."""

    def __init__(self, name: str, command: list[str], env: dict[str, str] | None = None) -> None:
        self.name = name
        try:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env
            )
        except OSError as e:
            raise ToolMissing(
                f"arm {name} cannot start: {e.strerror}", command[0], "install the peer or leave the arm out"
            ) from None
        self._read()
        self.info = self.ask({"cmd": "info"})

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass
        return self._read()

    def timed(self, request: dict[str, Any]) -> tuple[float, list[list[int]]]:
        """Prepare, then time `go` with this process's clock: (seconds, tokens)."""
        self.ask({"cmd": "prepare", **request})
        start = time.perf_counter()
        answer = self.ask({"cmd": "go"})
        return time.perf_counter() - start, answer["tokens"]

    def _read(self) -> dict[str, Any]:
        assert self.process.stdout is not None and self.process.stderr is not None
        line = self.process.stdout.readline()
        if not line:
            words = self.process.stderr.read().strip().splitlines()
            raise ArmFailed(
                f"arm {self.name} ended: {words[-1] if words else 'no message'}",
                self.name,
                "run the arm's command by hand",
            )
        return json.loads(line)

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()

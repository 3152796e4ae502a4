"""Client of the transformers process."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from plow.errors import PlowError, ToolMissing

SERVER = Path(__file__).with_name("hf_server.py")


class OracleError(PlowError):
    """The oracle process failed, died or did not answer in time: no verdict."""


@dataclass(frozen=True)
class Greedy:
    """tokens: the generated ids; margins: top-1 minus top-2 logit of each step."""

    tokens: list[int]
    margins: list[float]


class HFOracle:
    """transformers' own class on a checkpoint directory, in a process of its own. A context manager.

    dtype: "float32" | "bfloat16" | "float64"; attn: "eager" (captures need it) | "sdpa" (what a user runs: for
    timing); threads: 0 = torch's default; timeout_s: limit of one request. Raises ToolMissing when the extra
    `oracle` is not installed, OracleError when the process fails.
    """

    def __init__(
        self,
        checkpoint_dir: str | Path,
        dtype: str = "float32",
        attn: str = "eager",
        threads: int = 0,
        timeout_s: float = 600.0,
        python: str = sys.executable,
    ) -> None:
        self.timeout_s = timeout_s
        self._tmp = tempfile.TemporaryDirectory(prefix="plow-oracle-")
        self._log = (Path(self._tmp.name) / "stderr").open("w+")
        env = os.environ | {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
        command = [python, "-I", str(SERVER), str(Path(checkpoint_dir).resolve()), dtype, attn, str(threads)]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            encoding="utf-8",
            env=env,
        )
        self._lines: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        try:
            self.info: dict[str, Any] = self._answer("start")
        except PlowError:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the process; may be called twice."""
        if self._process.stdin and not self._process.stdin.closed:
            with contextlib.suppress(BrokenPipeError):  # the process may be gone already
                self._process.stdin.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(5)
        if self._process.stdout:
            self._process.stdout.close()
        self._log.close()
        self._tmp.cleanup()

    def logits(self, tokens: list[int], rows: list[int] | None = None) -> np.ndarray:
        """f32 [len(rows), vocab]: logits at `rows`, at all positions without it."""
        with tempfile.NamedTemporaryFile(dir=self._tmp.name, suffix=".npy") as f:
            self._call("logits", tokens=_ints(tokens), rows=rows, out=f.name)
            return np.load(f.name)

    def greedy(self, tokens: list[int], count: int) -> Greedy:
        """`count` greedy tokens after the prompt, with a cache and explicit positions; end tokens do not stop it."""
        answer = self._call("greedy", tokens=_ints(tokens), count=count)
        return Greedy(answer["tokens"], answer["margins"])

    def capture(self, tokens: list[int], layers: list[int] | None = None) -> dict[str, np.ndarray]:
        """Every module's input and output: "model.layers.3.mlp.out" etc., and "….self_attn.query" / ".key" after RoPE:
        f32 [T, features]. layers: keep only these blocks. Needs attn "eager"."""
        with tempfile.NamedTemporaryFile(dir=self._tmp.name, suffix=".npz") as f:
            self._call("capture", tokens=_ints(tokens), layers=layers, out=f.name)
            with np.load(f.name) as arrays:
                return dict(arrays)

    def attributes(self) -> dict[str, dict[str, Any]]:
        """module -> scalars that it holds (variance_epsilon or eps, scaling, sliding_window, ...)."""
        return self._call("attributes")["modules"]

    def time_decode(self, tokens: list[int], count: int, repeats: int = 1) -> dict[str, Any]:
        """{"seconds": [repeats][count], "tokens": the ones decoded in the last repeat}; batch 1."""
        return self._call("time_decode", tokens=_ints(tokens), count=count, repeats=repeats)

    def time_prefill(self, tokens: list[int], repeats: int = 1) -> dict[str, Any]:
        """{"seconds": [repeats], "next": greedy next token}."""
        return self._call("time_prefill", tokens=_ints(tokens), repeats=repeats)

    def _call(self, op: str, **fields: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"op": op, **fields}) + "\n")
            self._process.stdin.flush()
        except (BrokenPipeError, ValueError) as e:
            raise OracleError("the oracle process is gone", op, self._tail()) from e
        return self._answer(op)

    def _answer(self, op: str) -> dict[str, Any]:
        try:
            line = self._lines.get(timeout=self.timeout_s)
        except queue.Empty:
            self._process.kill()
            raise OracleError(
                f"the oracle did not answer in {self.timeout_s:g} s", op, "raise timeout_s, or free the machine"
            ) from None
        if not line:
            raise OracleError("the oracle process ended", op, self._tail())
        answer = json.loads(line)
        if answer.pop("ok"):
            return answer
        if answer["kind"] == "missing":
            raise ToolMissing(
                f"transformers or torch is not installed: {answer['error']}", "oracle", "pip install 'plow[oracle]'"
            )
        raise OracleError(f"{answer['kind']}: {answer['error']}", op, "see the checkpoint and the request")

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put("")

    def _tail(self) -> str:
        if self._log.closed:
            return "it was closed"
        self._log.flush()
        lines = Path(self._log.name).read_text(errors="replace").strip().splitlines()
        return f"its last words: {lines[-1]}" if lines else "it said nothing"


def _ints(tokens: list[int]) -> list[int]:
    return [int(t) for t in tokens]

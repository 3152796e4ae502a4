"""`python -m plow.cli.ask --assets BUNDLE QUESTION`: serve a bundle, ask one chat question over HTTP, stop the server.

The end-to-end check of a deployment: another process, a real socket, the public API.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Annotated, Any

import typer

from plow.cli.common import emit
from plow.errors import BundleError, PlowError, RequestError

START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 10.0
LOG_LINES = 15
"""Lines of the server's log that an error shows."""
SERVE = "from plow.cli.plowrt import main; main()"


def free_port() -> int:
    """A TCP port of the loopback interface that was free a moment ago."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def http_json(url: str, body: dict[str, Any] | None = None, timeout_s: float = 60.0) -> dict[str, Any]:
    """GET, or POST when there is a body. Raises RequestError with the server's own words on an HTTP error status, and
    OSError when nobody answers."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as reply:
            answer = json.load(reply)
    except urllib.error.HTTPError as e:
        text = e.read().decode(errors="replace")
        raise RequestError(f"HTTP {e.code}: {text[:500]}", url, "see the server's log") from None
    except json.JSONDecodeError as e:
        raise RequestError(f"the reply is no JSON: {e}", url, "is another service listening on this port?") from None
    if not isinstance(answer, dict):
        raise RequestError("the reply is no JSON object", url, "is another service listening on this port?")
    return answer


def tail(log: IO[bytes]) -> str:
    log.seek(0)
    return "\n".join(log.read().decode(errors="replace").splitlines()[-LOG_LINES:])


def wait_until_healthy(server: subprocess.Popen[bytes], base: str, log: IO[bytes], timeout_s: float) -> None:
    """Returns when GET /health answers; raises PlowError when the server exits first or takes too long."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise PlowError(f"the server exited with status {server.returncode} before it was ready", tail(log),
                            "fix what the log names; `plowrt serve` alone shows the same")
        try:
            http_json(f"{base}/health", timeout_s=2.0)
            return
        except (OSError, RequestError):
            time.sleep(0.1)
    raise PlowError(f"the server was not ready after {timeout_s:.0f} s", tail(log), "raise --start-timeout")


@contextmanager
def serving(assets: Path, timeout_s: float = START_TIMEOUT_S) -> Iterator[str]:
    """A running server of the bundle; yields its base URL and stops it on the way out, whatever happened."""
    if not (assets / "manifest.json").is_file():
        raise BundleError("no bundle here", str(assets), "build one with plowc, or run `make bringup`")
    port = free_port()
    base = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryFile() as log:
        command = [sys.executable, "-c", SERVE, "serve", "--assets", str(assets), "--port", str(port)]
        server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
        try:
            wait_until_healthy(server, base, log, timeout_s)
            yield base
        finally:
            server.terminate()
            try:
                server.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()


def chat(base: str, question: str, max_tokens: int) -> dict[str, Any]:
    """One greedy chat completion: {"answer", "model", "finish_reason", "usage", "seconds"}. Raises RequestError."""
    model = http_json(f"{base}/v1/models")["data"][0]["id"]
    body = {"model": model, "messages": [{"role": "user", "content": question}], "max_tokens": max_tokens,
            "temperature": 0}
    start = time.perf_counter()
    reply = http_json(f"{base}/v1/chat/completions", body)
    seconds = time.perf_counter() - start
    choice = reply["choices"][0]
    answer = (choice["message"]["content"] or "").strip()
    if not answer:
        raise RequestError("the answer is empty", base, "check the chat template and the end-of-sequence ids")
    return {"answer": answer, "model": model, "finish_reason": choice["finish_reason"], "usage": reply.get("usage"),
            "seconds": round(seconds, 4)}


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def ask(
    question: Annotated[str, typer.Argument(help="the user message")],
    assets: Annotated[Path, typer.Option(help="bundle directory")],
    max_tokens: Annotated[int, typer.Option(help="longest answer, tokens")] = 48,
    start_timeout: Annotated[float, typer.Option(help="seconds until the server must be ready")] = START_TIMEOUT_S,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON object on stdout")] = False,
) -> None:
    """Serve BUNDLE on a free port, ask QUESTION over HTTP, print the answer, stop the server."""
    try:
        with serving(assets, start_timeout) as base:
            result = chat(base, question, max_tokens)
    except PlowError as e:
        if as_json:
            emit(dict(e.as_dict()))
        print(f"error: {e.line()}", file=sys.stderr)
        raise typer.Exit(e.exit_code) from None
    if as_json:
        emit({"schema": "plow.ask/1", "question": question, **result})
    else:
        print(f"Q: {question}\nA: {result['answer']}")


if __name__ == "__main__":
    app()

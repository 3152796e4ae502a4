"""A server in a process of its own, and the few HTTP calls that a check of a deployment needs."""

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
from typing import IO, Any

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

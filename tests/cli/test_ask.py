"""`plow.cli.ask` reports every way in which a deployment can fail to answer, and stops the server it started."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from plow.cli import ask
from plow.errors import BundleError, PlowError, RequestError
from plow.serve import process

FAKE_SERVER = """
import http.server, json, pathlib, sys
ARGS = dict(zip(sys.argv[2::2], sys.argv[3::2]))
MODE = json.loads(pathlib.Path(ARGS["--assets"], "manifest.json").read_text())
if MODE.get("exit"):
    sys.exit("no interpreter for this target")
class Handler(http.server.BaseHTTPRequestHandler):
    def reply(self, status, data):
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(data).encode())
    def do_GET(self):
        self.reply(200, {"data": [{"id": "tiny"}]} if "models" in self.path else {"status": "ok"})
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert body["temperature"] == 0 and body["model"] == "tiny"
        message = {"role": "assistant", "content": MODE["answer"]}
        self.reply(MODE.get("status", 200), {"choices": [{"message": message, "finish_reason": "stop"}], "usage": {}})
http.server.HTTPServer(("127.0.0.1", int(ARGS["--port"])), Handler).serve_forever()
"""


@pytest.fixture
def bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(process, "SERVE", FAKE_SERVER)
    (tmp_path / "manifest.json").write_text(json.dumps({"answer": " Paris. "}))
    return tmp_path


def test_an_answer_is_printed_and_the_server_is_stopped(bundle: Path) -> None:
    result = CliRunner().invoke(ask.app, ["--assets", str(bundle), "capital?", "--json"])
    assert result.exit_code == 0
    out = json.loads(result.stdout)
    assert out["schema"] == "plow.ask/1" and out["answer"] == "Paris." and out["model"] == "tiny"
    with process.serving(bundle) as base:
        assert process.http_json(f"{base}/health") == {"status": "ok"}
    with pytest.raises(OSError):
        process.http_json(f"{base}/health")


def test_a_server_that_dies_shows_its_last_words(bundle: Path) -> None:
    (bundle / "manifest.json").write_text(json.dumps({"exit": True}))
    with pytest.raises(PlowError, match="no interpreter for this target"), process.serving(bundle):
        pass


def test_a_server_that_never_answers_is_a_typed_error(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "SERVE", "import time; time.sleep(60)")
    with pytest.raises(PlowError, match="not ready after"), process.serving(bundle, timeout_s=0.5):
        pass


@pytest.mark.parametrize("mode", [{"answer": ""}, {"answer": "x", "status": 503}])
def test_an_empty_answer_or_an_error_status_is_a_typed_error(bundle: Path, mode: dict[str, object]) -> None:
    (bundle / "manifest.json").write_text(json.dumps(mode))
    with pytest.raises(RequestError), process.serving(bundle) as base:
        ask.chat(base, "capital?", 8)


def test_a_missing_bundle_is_a_typed_error(tmp_path: Path) -> None:
    with pytest.raises(BundleError), process.serving(tmp_path):
        pass
    result = CliRunner().invoke(ask.app, ["--assets", str(tmp_path), "hi", "--json"])
    assert result.exit_code == 2 and json.loads(result.stdout)["error"] == "BundleError"
    assert result.stderr.startswith("error: no bundle here")


def test_the_real_server_command_is_this_interpreter() -> None:
    assert "plow.cli.plowrt" in process.SERVE and Path(sys.executable).exists()

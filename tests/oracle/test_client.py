"""The client of the oracle process: whatever the process does wrong is a typed error, never a hang."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from plow.errors import ToolMissing
from plow.oracle import client, hf_server
from plow.oracle.client import HFOracle, OracleError

HELLO = "import json,sys,time\nprint(json.dumps({'ok': True, 'transformers': 'x'}), flush=True)\n"
GREEDY = "for line in sys.stdin: print(json.dumps({'ok': True, 'tokens': [5], 'margins': [0.5]}), flush=True)\n"


def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str) -> None:
    (tmp_path / "server.py").write_text(text)
    monkeypatch.setattr(client, "SERVER", tmp_path / "server.py")


def test_answers_are_typed_and_the_process_ends_with_the_client(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    server(monkeypatch, tmp_path, HELLO + GREEDY)
    with HFOracle(tmp_path) as oracle:
        assert oracle.info == {"transformers": "x"}
        assert oracle.greedy([1, 2], 1) == client.Greedy([5], [0.5])
    assert oracle._process.returncode == 0
    oracle.close()
    with pytest.raises(OracleError, match="gone"):
        oracle.greedy([1], 1)


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    server(monkeypatch, tmp_path, 'print(\'{"ok": false, "kind": "missing", "error": "No module named torch"}\')')
    with pytest.raises(ToolMissing, match=r"No module named torch.*plow\[oracle\]"):
        HFOracle(tmp_path)


def test_a_process_that_dies_is_reported_with_its_last_words(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    server(monkeypatch, tmp_path, "import sys; sys.exit('out of memory')")
    with pytest.raises(OracleError, match=r"process ended.*out of memory"):
        HFOracle(tmp_path)
    server(monkeypatch, tmp_path, HELLO + "sys.stdin.readline()\n")
    with HFOracle(tmp_path) as oracle, pytest.raises(OracleError, match=r"process ended.*said nothing"):
        oracle.greedy([1], 1)


def test_a_process_that_hangs_is_killed_at_the_time_limit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    server(monkeypatch, tmp_path, HELLO + "time.sleep(60)\n")
    start = time.monotonic()
    with HFOracle(tmp_path, timeout_s=10) as oracle:
        oracle.timeout_s = 0.2
        with pytest.raises(OracleError, match=r"did not answer in 0.2 s"):
            oracle.greedy([1], 1)
    assert time.monotonic() - start < 30 and oracle._process.returncode != 0


def test_an_error_of_the_server_is_a_typed_error_and_the_next_request_works(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fail = (
        "sys.stdin.readline(); print(json.dumps({'ok': False, 'kind': 'IndexError', 'error': 'row 9'}), flush=True)\n"
    )
    server(monkeypatch, tmp_path, HELLO + fail + GREEDY)
    with HFOracle(tmp_path) as oracle:
        with pytest.raises(OracleError, match="IndexError: row 9"):
            oracle.greedy([1], 1)
        assert oracle.greedy([1], 1).tokens == [5]


def test_the_server_is_isolated_and_imports_nothing_of_this_project(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    source = Path(hf_server.__file__).read_text()
    assert Path(hf_server.__file__) == client.SERVER and "import plow" not in source and "from plow" not in source
    server(monkeypatch, tmp_path, HELLO.replace("'x'", "sys.flags.isolated"))
    with HFOracle(tmp_path) as oracle:
        assert oracle.info["transformers"] == 1

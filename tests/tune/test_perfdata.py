"""perf-data records are complete, finite and repeatable."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from plow.errors import ConfigError
from plow.tune import perfdata

ROOT = Path(__file__).parents[2]
GOOD = perfdata.PerfRecord(
    subject="plow", workload="tiny, batch 1", metric="decode", unit="tokens/s", value=2.0,
    arms={"plow": [2.0, 2.1, 1.9], "peer": [1.0, 1.1, 1.0]}, method="3 interleaved rounds, median", command="true")


def test_a_record_comes_back_with_date_host_and_versions(tmp_path: Path) -> None:
    path = tmp_path / "new" / "a.jsonl"
    perfdata.append(path, GOOD)
    perfdata.append(path, replace(GOOD, verdict="win"), accelerator="card")
    first, second = perfdata.read(path)
    assert first["date"].endswith("+00:00") and first["host"]["cpu"] and first["versions"]["python"]
    assert second["verdict"] == "win" and second["host"]["accelerator"] == "card"


@pytest.mark.parametrize("bad", [
    replace(GOOD, value=float("nan")), replace(GOOD, command=""), replace(GOOD, arms={"peer": [1.0]}),
    replace(GOOD, arms={"plow": [2.0], "peer": []}), replace(GOOD, arms={"plow": [float("inf")]}),
    replace(GOOD, schema="plow.perf/0"), replace(GOOD, method=""),
])
def test_a_bad_record_is_a_typed_error_and_writes_nothing(tmp_path: Path, bad: perfdata.PerfRecord) -> None:
    with pytest.raises(ConfigError):
        perfdata.append(tmp_path / "a.jsonl", bad)
    assert not (tmp_path / "a.jsonl").exists()


@pytest.mark.parametrize("line", ["{", "[]", json.dumps({"schema": perfdata.SCHEMA, "surprise": 1})])
def test_a_damaged_line_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "a.jsonl"
    perfdata.append(path, GOOD)
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(ConfigError, match=r"a\.jsonl:2"):
        perfdata.read(path)


def test_every_committed_record_is_valid() -> None:
    for path in (ROOT / "perf-data").glob("*.jsonl"):
        assert perfdata.read(path)


def test_the_readme_names_every_field() -> None:
    text = (ROOT / "perf-data" / "README.md").read_text("utf-8")
    assert [n for n in perfdata.NAMES if f"`{n}`" not in text] == []

"""The benchmark counts what it says it counts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tiny_bundle import tiny_bundle

from plow.errors import RequestError
from plow.runtime import bench
from plow.runtime.llm import LLM

PROBE = {"read_bytes_per_s": 1e9, "hop_s": 180e-9}


@pytest.fixture
def llm(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> LLM:
    monkeypatch.setattr(bench, "probe", lambda library, repeats: PROBE)
    return LLM(tiny_bundle(tiny_llama, tmp_path_factory), "numpy", allow_uncertified=True)


def test_every_round_measures_every_kind_and_records_the_machine(llm: LLM) -> None:
    lines: list[str] = []
    report = bench.run_bench(llm, rounds=2, tokens=4, prompt_tokens=20, log=lines.append)
    assert set(report["measurements"]) == {"decode_1", "decode_4", "prompt_20"} and len(lines) == 2
    for m in report["measurements"].values():
        assert len(m["rounds"]) == 2 and 0 < m["min"] <= m["median"] <= m["max"]
    assert report["modes"] == ["far", "far"] and report["probes"] == [PROBE, PROBE]
    rounds = report["measurements"]["decode_1"]["rounds"]
    assert report["read_share"] == pytest.approx(sum(rounds) / 2 * report["weight_bytes_per_step"] / 1e9)
    json.dumps(report)


def test_weight_bytes_of_a_step_are_those_of_the_projections(llm: LLM) -> None:
    hidden, inter, layers, q, kv = 64, 96, 2, 128, 64
    per_layer = (q + 2 * kv) * hidden + hidden * q + 3 * hidden * inter
    assert bench.weight_bytes(llm.bundle.packets.programs[0]) == 2 * (layers * per_layer + 320 * hidden)


def test_a_bundle_too_small_for_the_question_is_a_typed_error(llm: LLM) -> None:
    with pytest.raises(RequestError, match="exceed the context of 128"):
        bench.run_bench(llm, 1, 4, 512)


@pytest.mark.parametrize(("hop", "mode"), [(0.0, "one core"), (40e-9, "near"), (180e-9, "far")])
def test_the_mode_of_the_cores(hop: float, mode: str) -> None:
    assert bench.machine_mode(hop) == mode

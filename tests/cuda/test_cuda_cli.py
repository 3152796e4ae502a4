"""The command lines around the GPU target: building, shape bundles that have no text, the benchmark's report."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_cupy import FakeCupy
from gpu_rig import LLAMA, interpret
from typer.testing import CliRunner, Result

from plow import compile as compiler
from plow.cli import plowc, plowrt
from plow.errors import RequestError
from plow.oracle import tiny
from plow.runtime import bundle as bundles
from plow.runtime.bench import weight_bytes
from plow.runtime.cuda_bench import kv_bytes, run_cuda_bench
from plow.runtime.llm import LLM


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the interpreter's build was asked for; it needs no CUDA compiler here."""
    asked: dict[str, Any] = {}

    def build(out: Path, programs: list[Any], isa: str = "sm_90a") -> dict[str, Any]:
        asked["isa"] = isa
        (out / "interp.cubin").write_bytes(b"cubin")
        return {"file": "interp.cubin", "sha256": compiler.file_sha256(out / "interp.cubin"), "isa": isa}

    target = dataclasses.replace(compiler.TARGETS["h200"], interpreter=build)
    monkeypatch.setitem(compiler.TARGETS, "h200", target)
    return asked


def run(app: Any, *args: str) -> Result:
    return CliRunner().invoke(app, list(args), env={"COLUMNS": "300"})


@pytest.fixture
def shape(built: dict[str, Any], tmp_path: Path) -> Path:
    """A shape bundle that was built by command line."""
    (tmp_path / "tiny.json").write_text(json.dumps(LLAMA))
    r = run(plowc.app, "--config", str(tmp_path / "tiny.json"), "--synthetic", "7", "--gpu", "h200", "--workers", "5",
            "--max-ctx", "64", "--out", str(tmp_path / "shape"), "--json")  # fmt: skip
    assert r.exit_code == 0, r.stderr
    assert "SHAPE BUNDLE" in r.stderr and "UNCERTIFIED" in r.stderr
    manifest = json.loads(r.stdout)
    assert manifest["schema"] == "plowc.build/1" and manifest["target"] == "h200" and manifest["certificates"] == []
    assert manifest["weights"]["synthetic"] == 7
    return tmp_path / "shape"


def test_a_shape_bundle_loads_uncertified_without_an_image(shape: Path) -> None:
    b = bundles.load(shape, allow_uncertified=True)
    assert b.synthetic and not b.certified and b.target == "h200" and not (shape / "weights.bin").exists()
    (shape / "interp.cubin").write_bytes(b"another")
    with pytest.raises(bundles.BundleError, match="sha256") as e:
        bundles.load(shape, allow_uncertified=True)
    assert "interp.cubin" in e.value.where


@pytest.mark.parametrize("command", [("generate", "--prompt", "x"), ("generate", "--chat", "--prompt=x"), ("serve",)])
def test_a_shape_bundle_has_no_text(shape: Path, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)  # refused before the device is looked for
    r = run(plowrt.app, *command, "--assets", str(shape), "--allow-uncertified")
    errors = [line for line in r.stderr.splitlines() if line.startswith("error: ")]
    assert r.exit_code == 2 and r.stdout == "" and len(errors) == 1
    assert "random weights and no text" in errors[0] and "plowrt bench" in errors[0]


def test_a_shape_bundle_goes_on_from_token_ids(shape: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake(shape, monkeypatch)
    r = run(plowrt.app, "generate", "--assets", str(shape), "--allow-uncertified", "--prompt-ids", "1,2,3",
            "--max-tokens", "4", "--json")  # fmt: skip
    report = json.loads(r.stdout)
    assert len(report["token_ids"]) == 4 and report["bundle"]["synthetic"] and "SHAPE BUNDLE" in r.stderr


def fake(path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeCupy:
    cp = FakeCupy(interpret(bundles.load(path, allow_uncertified=True)))
    monkeypatch.setitem(sys.modules, "cupy", cp)
    return cp


def test_the_benchmark_reports_kernel_engine_and_bytes(shape: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cp = fake(shape, monkeypatch)
    r = run(plowrt.app, "bench", "--assets", str(shape), "--allow-uncertified", "--rounds", "2", "--tokens", "24",
            "--prompt-tokens", "20", "--json")  # fmt: skip
    assert r.exit_code == 0, r.stderr
    report = json.loads(r.stdout)
    assert report["schema"] == "plowrt.bench_cuda/1" and report["context"] == 20 and report["bundle"]["synthetic"]
    assert [d["batch"] for d in report["decode"]] == [1, 8]
    programs = bundles.load(shape, allow_uncertified=True).packets.programs
    for d in report["decode"]:
        assert d["ms_kernel"] == pytest.approx(0.5), "12 ms between the events, 24 steps"
        assert d["bytes"] == weight_bytes(programs[0]) + d["batch"] * 2 * 2 * 2 * 64 * 2 * 32
        assert d["gb_s"] == pytest.approx(d["bytes"] / 0.5e-3 / 1e9) and len(d["rounds"]["ms_engine"]) == 2
        assert d["tok_s"] == pytest.approx(d["batch"] / d["ms_engine"] * 1e3)
    timed = [p for p in cp.jobs if p["n_steps"] == 24 and p["positions"][0] == 19]
    assert {int(p["n_rows"]) for p in timed} == {1, 8}
    fake(shape, monkeypatch)
    text = run(plowrt.app, "bench", "--assets", str(shape), "--allow-uncertified", "--rounds", "1", "--tokens", "4",
               "--prompt-tokens", "1").stdout  # fmt: skip
    assert "batch 8: " in text and "GB/s" in text


@pytest.mark.parametrize("command", [("generate", "--prompt-ids", "1,2"), ("bench",)])
def test_nothing_but_the_device_draws_the_weights_of_a_shape_bundle(shape: Path, command: tuple[str, ...]) -> None:
    r = run(plowrt.app, *command, "--assets", str(shape), "--allow-uncertified", "--backend", "numpy")
    assert r.exit_code == 2 and "has no weights to read" in r.stderr and "internal" not in r.stderr


def test_only_the_device_is_timed(tmp_path: Path, built: dict[str, Any]) -> None:
    checkpoint = tiny.write(tmp_path / "ck", LLAMA, seed=1)
    run(plowc.app, "--hf-dir", str(checkpoint), "--max-ctx", "64", "--workers", "3", "--gpu", "h200", "--out",
        str(tmp_path / "b"))  # fmt: skip
    r = run(plowrt.app, "bench", "--assets", str(tmp_path / "b"), "--allow-uncertified", "--backend", "numpy")
    assert r.exit_code == 2 and "only the cuda backend times steps" in r.stderr


def test_kernel_and_engine_decode_the_same_rows(shape: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cp = fake(shape, monkeypatch)
    llm = LLM(shape, allow_uncertified=True)
    run_cuda_bench(llm, 1, 24, 20)
    timed = [p for p in cp.jobs if p["sample_index"][7] == 7 and (p["positions"] == 19).all()]
    assert len(timed) == 4, "the warm engine loop, a warm launch and the one between the events, the engine loop"
    assert [int(p["n_steps"]) for p in timed] == [1, 5, 24, 1], "a first call of one step says how many fit"
    for name in ("tokens", "positions", "slots", "sample_index"):
        assert all(np.array_equal(p[name], timed[0][name]) for p in timed)


def test_a_question_too_large_for_the_bundle_is_refused(shape: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake(shape, monkeypatch)
    with pytest.raises(RequestError, match="60 \\+ 24 positions do not fit the context of 64"):
        run_cuda_bench(LLM(shape, allow_uncertified=True), 1, 24, 60)


def test_bytes_of_a_step(shape: Path) -> None:
    programs = bundles.load(shape, allow_uncertified=True).packets.programs
    hidden, inter, q, kv, vocab = 128, 192, 4 * 64, 2 * 64, 320
    per_layer = (q + 2 * kv) * hidden + hidden * q + 3 * hidden * inter
    # the head computes whole tiles of 16 ids
    assert weight_bytes(programs[0]) == 2 * (2 * per_layer + vocab * hidden) == weight_bytes(programs[-1])
    assert kv_bytes(programs[0], 1, 100) == 2 * 2 * 2 * 64 * 2 * 100
    assert kv_bytes(programs[-1], 3, 100) == 3 * kv_bytes(programs[0], 1, 100)


def test_isa_reaches_the_build_and_is_recorded(built: dict[str, Any], tmp_path: Path) -> None:
    checkpoint = tiny.write(tmp_path / "ck", LLAMA, seed=1)
    common = ("--hf-dir", str(checkpoint), "--max-ctx", "64", "--workers", "3", "--out", str(tmp_path / "b"), "--json")
    r = run(plowc.app, *common, "--gpu", "h200", "--isa", "sm_90a")
    manifest = json.loads(r.stdout)
    assert built["isa"] == "sm_90a" == manifest["choices"]["isa"]["value"]
    assert [p.rows for p in bundles.load(tmp_path / "b", allow_uncertified=True).packets.programs] == [1, 2, 4, 8]


@pytest.mark.parametrize(
    ("args", "what"),
    [
        (("--gpu", "cpu", "--isa", "sm_90a", "--hf-dir", "x"), "--isa is of GPU targets"),
        (("--gpu", "h200", "--verify", "on", "--hf-dir", "x"), "cannot be certified yet"),
        (("--gpu", "h200", "--verify", "maybe", "--hf-dir", "x"), "'maybe' is unknown"),
        (("--config", "x.json"), "--config with --synthetic"),
        (("--synthetic", "1"), "--config with --synthetic"),
        (("--config", "x.json", "--hf-dir", "x"), "--config with --synthetic"),
        (("--config", "x.json", "--synthetic", "1", "--hf-dir", "x"), "--config with --synthetic"),
    ],
)
def test_command_lines_that_contradict_themselves(tmp_path: Path, args: tuple[str, ...], what: str) -> None:
    r = run(plowc.app, "--out", str(tmp_path / "b"), *args)
    assert r.exit_code == 2 and what in r.stderr and not (tmp_path / "b").exists()

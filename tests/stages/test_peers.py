"""Peers of the GPU comparison: what can be known without a GPU. Kernels and graphs check themselves in every run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from plow.errors import ConfigError
from stages.s7_campaign.peers.rows import Measured, Run, row, table
from stages.s7_campaign.peers.shape import shape_of

ROOT = Path(__file__).parents[2]
LLAMA_1B: dict[str, Any] = {
    "model_type": "llama", "num_hidden_layers": 16, "hidden_size": 2048, "intermediate_size": 8192,
    "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 128256, "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
}  # fmt: skip
LLAMA_8B = LLAMA_1B | {
    "num_hidden_layers": 32, "hidden_size": 4096, "intermediate_size": 14336, "head_dim": 128,
    "tie_word_embeddings": False,
}  # fmt: skip
TINY: dict[str, Any] = {
    "model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 96,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 192, "rms_norm_eps": 1e-5,
    "max_position_embeddings": 512, "rope_theta": 10000.0, "tie_word_embeddings": True,
    "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                     "original_max_position_embeddings": 64},
}  # fmt: skip
TINY_QWEN3 = TINY | {
    "model_type": "qwen3", "num_key_value_heads": 1, "head_dim": 64, "tie_word_embeddings": False,
    "rope_scaling": None, "rope_parameters": {"rope_theta": 1000000.0, "rope_type": "default"},
}  # fmt: skip
BOTH = pytest.mark.parametrize("config", [TINY, TINY_QWEN3], ids=["llama", "qwen3"])
RUN = Run("llama-3.2-1b", 1, 512, 64, 4.5e12, "NVIDIA H200", 13000, {"torch": "2"}, "python3 ...")


def committed() -> list[dict[str, Any]]:
    return [json.loads(line) for line in (ROOT / "perf-data/h200/decode.jsonl").read_text().splitlines()]


def task(config: dict[str, Any], batch: int = 2) -> Any:
    """Projections of std 0.15: with transformers' 0.02 a shape this small computes nearly nothing."""
    from stages.s7_campaign.peers.bench import Task

    return Task.of(shape_of(config), batch, 96, 24, "cpu", scale=0.15)


@pytest.mark.parametrize(("name", "config"), [("llama-3.2-1b", LLAMA_1B), ("llama-3.1-8b", LLAMA_8B)])
@pytest.mark.parametrize("batch", [1, 8])
def test_bytes_of_a_step_are_those_our_bundles_stream(name: str, config: dict[str, Any], batch: int) -> None:
    ours = {r["bytes"] for r in committed() if (r["model"], r["batch"], r["ctx"]) == (name, batch, 512)}
    assert ours == {shape_of(config).step_bytes(batch, 512)}


@pytest.mark.parametrize("change", [
    {"model_type": "gemma3_text"}, {"attention_bias": True}, {"use_sliding_window": True}, {"vocab_size": None},
])  # fmt: skip
def test_a_config_that_no_peer_computes_is_a_typed_error(change: dict[str, Any]) -> None:
    config = {k: v for k, v in (LLAMA_1B | change).items() if v is not None}
    with pytest.raises(ConfigError):
        shape_of(config)


def test_an_absent_head_dim_is_the_familys() -> None:
    without = {k: v for k, v in LLAMA_1B.items() if k != "head_dim"}
    assert shape_of(without).head_dim == 64
    assert shape_of(without | {"model_type": "qwen3"}).head_dim == 128


def test_a_line_has_every_field_of_the_committed_ones() -> None:
    line = row(RUN, Measured("peer", 2_488_270_848, [0.8, 0.7, 0.9], {"rms": 0.03}, "tiles"))
    assert set(committed()[0]) <= set(line)
    assert line["ms"] == 0.8 and line["n"] == 192 and line["valid"] and line["schema"] == committed()[0]["schema"]
    assert line["pct_of_ceiling"] == pytest.approx(2_488_270_848 / 0.8e-3 / 4.5e12 * 100, abs=0.05)


@pytest.mark.parametrize("bad", [
    Measured("peer", 1, [0.8], {"rms": float("inf")}, reason="logits are off"), Measured("peer", 1),
])  # fmt: skip
def test_an_invalid_arm_has_a_reason_and_no_time(bad: Measured) -> None:
    line = json.loads(json.dumps(row(RUN, bad), allow_nan=False))
    assert line["ms"] is None and line["pct_of_ceiling"] is None and not line["valid"] and line["reason"]
    good = row(RUN, Measured("fast", 1, [0.5]))
    assert table([line, good]).splitlines()[0].startswith("fast")


@pytest.mark.oracle
@BOTH
@pytest.mark.parametrize("batch", [1, 3])
def test_arms_agree_with_transformers_in_fp32(config: dict[str, Any], batch: int) -> None:
    from stages.s7_campaign.peers import bench, check, hf, lean

    t = task(config, batch)
    wanted = check.reference(t.weights, t.cases, t.kv)
    eager, yardstick = bench.make("eager", hf.Eager, t, wanted, check.YARDSTICK_LIMIT)
    limit = check.SLACK * yardstick.check["rms"]
    arm, measured = bench.make("lean", lambda *a: lean.Lean(*a, compiled=False), t, wanted, limit)
    assert eager is not None and arm is not None, measured.reason
    assert measured.check["argmax"] > 0.8


@pytest.mark.oracle
@BOTH
@pytest.mark.parametrize("fault", ["gain", "rope", "append", "head"])
def test_a_wrong_arm_is_invalid(config: dict[str, Any], fault: str) -> None:
    from stages.s7_campaign.peers import bench, check, hf, lean

    class Wrong(lean.Lean):
        def step(self) -> None:
            position = int(self.position)
            super().step()
            if fault == "append":
                self.kv[:, 1, :, :, position] = 0
            if fault == "head":
                self.logits = self.logits.roll(1, -1)

    def wrong(*a: Any) -> Any:
        arm = Wrong(*a, compiled=False)
        if fault == "gain":
            arm.weights.layers[0].norm1.fill_(1.0)
        if fault == "rope":
            arm.sin = -arm.sin
        return arm

    t = task(config)
    wanted = check.reference(t.weights, t.cases, t.kv)
    _, yardstick = bench.make("eager", hf.Eager, t, wanted, check.YARDSTICK_LIMIT)
    limit = check.SLACK * yardstick.check["rms"]
    arm, measured = bench.make("wrong", wrong, t, wanted, limit)
    assert arm is None and "off by" in measured.reason


@pytest.mark.oracle
def test_an_arm_that_does_not_compile_says_why_and_the_others_go_on() -> None:
    from stages.s7_campaign.peers import bench, check

    def broken(*_: Any) -> Any:
        raise RuntimeError("no kernel image\nmore words")

    t = task(TINY)
    arm, measured = bench.make("broken", broken, t, check.reference(t.weights, t.cases, t.kv), 0.1)
    assert arm is None and measured.reason == "RuntimeError: no kernel image"


@pytest.mark.oracle
def test_rounds_are_interleaved_and_unsteady_tokens_make_an_arm_invalid() -> None:
    from stages.s7_campaign.peers import bench

    order: list[str] = []

    def timer(name: str, steady: bool = True) -> Any:
        def time() -> tuple[float, list[int]]:
            order.append(name)
            return 1.0, [0 if steady else len(order)]

        return time

    timers = {"a": timer("a"), "b": timer("b", steady=False), "c": timer("c")}
    records = {n: Measured(n, 1) for n in timers}
    bench.rounds(3, timers, records)
    assert order == ["a", "b", "c", "c", "b", "a", "a", "c"]
    assert records["a"].valid and records["c"].valid and "different tokens" in records["b"].reason


@pytest.mark.oracle
@BOTH
def test_transformers_sees_slices_of_the_fused_matrices(config: dict[str, Any]) -> None:
    from stages.s7_campaign.peers import hf

    w = task(config).weights
    model, s = hf.build(w), w.shape
    attention = model.model.layers[1].self_attn
    assert attention.v_proj.weight.data_ptr() == w.layers[1].qkv[(s.heads + s.kv_heads) * s.head_dim :].data_ptr()
    assert (model.lm_head.weight.data_ptr() == model.model.embed_tokens.weight.data_ptr()) is s.tied
    assert attention.config._attn_implementation == "sdpa"


@pytest.mark.oracle
@BOTH
def test_the_lean_decoder_traces_without_graph_breaks(config: dict[str, Any]) -> None:
    import torch

    from stages.s7_campaign.peers import check, lean

    t = task(config)
    plain = lean.Lean(t.weights, t.batch, t.max_ctx, compiled=False)
    traced = lean.Lean(t.weights, t.batch, t.max_ctx, compiled=False)
    for name in ("entry", "layer", "leave"):
        compiled = torch.compile(getattr(plain, name), backend="eager", fullgraph=True, dynamic=False)
        setattr(traced, name, compiled)
    found, wanted = (check.run_cases(arm, t.cases, t.kv) for arm in (traced, plain))
    assert check.compare(found, wanted).max_error == 0.0


@pytest.mark.oracle
def test_the_script_runs_where_the_stage_package_cannot_be_imported() -> None:
    """By its path, as a device machine runs it: its folder `peers` is then a package of its own."""
    command = [sys.executable, "stages/s7_campaign/peers.py", "--help"]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | {"PYTHONPATH": "."}, capture_output=True, text=True)
    assert done.returncode == 0 and "--context" in done.stdout, done.stderr
    unknown = subprocess.run([*command[:-1], "B", "--config", "C", "--arms", "plow,x"], cwd=ROOT,
                             env=os.environ | {"PYTHONPATH": "."}, capture_output=True, text=True)  # fmt: skip
    assert unknown.returncode == 2 and "no arm x" in unknown.stderr

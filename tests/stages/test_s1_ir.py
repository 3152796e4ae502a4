"""Stage 1 sees what is wrong with a graph and names it, and is green on a right one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stage_rig import caught, context, judged, verdict

from plow.checkpoint import Checkpoint
from plow.errors import ConfigError, ToolMissing
from plow.graph import Graph
from plow.graph.semantics import Caches
from plow.models import build
from plow.oracle import tiny
from plow.oracle.client import HFOracle
from plow.oracle.perturb import perturbations
from stages.base import Planted
from stages.s1_ir import STAGE, geometry, golden, numeric, power, static
from stages.s1_ir.gate import from_golden, judge
from stages.s1_ir.planted import PLANTED, ReferenceOracle, report
from stages.s1_ir.subject import Subject
from stages.subject import Widened, random_tokens, step_inputs
from stages.substeps import attributes, compare, not_compared, row_error


@pytest.mark.parametrize("planted", PLANTED, ids=lambda p: p.name)
def test_a_planted_fault_is_red_and_named(planted: Planted, tmp_path: Path) -> None:
    assert caught(STAGE, planted, tmp_path / "bad")


@pytest.mark.parametrize("config", [tiny.LLAMA, tiny.GEMMA3, tiny.QWEN3], ids=["llama", "gemma3", "qwen3"])
def test_a_right_graph_is_green(config: dict[str, Any], tmp_path: Path) -> None:
    found = judged(STAGE, lambda ctx: report(ctx, config), tmp_path / "good")
    assert found.green, found.reasons


def test_a_missing_field_that_is_filled_in_silently_is_found(tiny_llama: Path) -> None:
    config = Checkpoint.open(tiny_llama).config

    def lenient(c: dict[str, Any]) -> Graph:
        return build({"rms_norm_eps": 1e-6} | c)

    assert [t.field for t in geometry.missing_fields(config, build(config), lenient) if not t.ok] == ["rms_norm_eps"]
    assert all(t.ok for t in geometry.missing_fields(config, build(config), build))


def test_a_field_that_a_family_claims_and_does_not_use_is_found(tiny_llama: Path) -> None:
    config = Checkpoint.open(tiny_llama).config

    def deaf(c: dict[str, Any]) -> Graph:
        return build(c | {"rms_norm_eps": 1e-5})

    silent = [t.field for t in geometry.changed_fields(config, build(config), deaf) if not t.ok]
    assert len(silent) == 1 and silent[0].startswith("rms_norm_eps")
    assert all(t.ok for t in geometry.changed_fields(config, build(config), build))


def test_an_untyped_error_of_a_family_is_a_crash(tiny_llama: Path) -> None:
    config = Checkpoint.open(tiny_llama).config

    def careless(c: dict[str, Any]) -> Graph:
        return build(c | {"hidden_size": c["hidden_size"]})

    trials = geometry.missing_fields(config, build(config), careless)
    assert [t.field for t in trials if t.outcome == "crash"] == ["hidden_size"]


def test_a_derived_head_dim_is_accepted_and_an_ambiguous_one_refused(tiny_llama: Path) -> None:
    config = Checkpoint.open(tiny_llama).config
    trials = {t.field: t for t in geometry.missing_fields(config, build(config), build)}
    assert trials["head_dim"].outcome == "derived" and "refuses" in trials["head_dim"].detail
    with pytest.raises(ConfigError):
        build({k: v for k, v in config.items() if k != "head_dim"} | {"hidden_size": 62})


def _right(path: Path) -> tuple[Graph, Widened, dict[str, np.ndarray], list[int], ReferenceOracle]:
    checkpoint = Checkpoint.open(path)
    oracle, tokens = ReferenceOracle(checkpoint), list(range(5, 25))
    weights = Widened({n: checkpoint.tensor(n) for n in oracle.graph.weights})
    return oracle.graph, weights, step_inputs(tokens), tokens, oracle


@pytest.mark.parametrize("fixture", ["tiny_llama", "tiny_gemma3", "tiny_qwen3"])
def test_every_operator_is_compared_and_agrees(fixture: str, request: pytest.FixtureRequest) -> None:
    graph, weights, step, tokens, oracle = _right(request.getfixturevalue(fixture))
    steps = compare(graph, weights, step, oracle.capture(tokens))
    assert not not_compared(graph, steps) and max(s.error for s in steps) < 1e-6


def test_only_the_wrong_operator_departs(tiny_gemma3: Path) -> None:
    graph, weights, step, tokens, oracle = _right(tiny_gemma3)
    i = next(i for i, n in enumerate(graph.nodes) if n.name == "layer.1.mlp_act")
    wrong = graph.with_nodes([*graph.nodes[:i], graph.nodes[i].with_attrs(act="silu"), *graph.nodes[i + 1 :]])
    steps = compare(wrong, weights, step, oracle.capture(tokens))
    assert [s.node.name for s in steps if s.error > 1e-6] == ["layer.1.mlp_act"]


def test_an_operator_without_a_capture_is_listed(tiny_llama: Path) -> None:
    graph, weights, step, tokens, oracle = _right(tiny_llama)
    captures = {k: v for k, v in oracle.capture(tokens).items() if "layers.1." not in k}
    assert "layer.1.q_proj" in [n.name for n in not_compared(graph, compare(graph, weights, step, captures))]


def test_a_wrong_eps_is_stated_by_its_module(tiny_gemma3: Path) -> None:
    graph, _, _, _, oracle = _right(tiny_gemma3)
    nodes = [n.with_attrs(eps=1e-5) if n.name == "layer.0.q_norm" else n for n in graph.nodes]
    wrong = [a for a in attributes(graph.with_nodes(nodes), oracle.attributes()) if not a.equal]
    assert [a.node for a in wrong] == ["layer.0.q_norm"] and "1e-05" in str(wrong[0])


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_value_that_is_not_finite_never_agrees(bad: float) -> None:
    good = np.ones((2, 3), np.float32)
    assert row_error(good, np.full((2, 3), bad, np.float32)) == np.inf
    assert row_error(good, good[:1]) == np.inf
    assert row_error(good, good) == 0.0


def test_power_is_lost_without_attributes_and_with_a_loose_tolerance(tiny_llama: Path) -> None:
    graph, weights, _, tokens, oracle = _right(tiny_llama)
    seen = power.measure(graph, weights, tokens, oracle.attributes(), set(graph.weights))
    assert not power.unnamed(seen, {n.op: 1e-5 for n in graph.nodes}, graph)
    assert power.unnamed([replace(s, stated=False) for s in seen], {n.op: 10.0 for n in graph.nodes}, graph)
    assert power.power_of_logits(seen, 1e-5)[0] > 10 > power.power_of_logits(seen, 1.0)[0]


def test_the_same_seed_asks_the_same_and_a_fresh_one_does_not(tiny_llama: Path, tmp_path: Path) -> None:
    seeds = [Subject.open(context(tmp_path, tiny_llama, **p)).seed for p in ({"seed": 3}, {"seed": "3"}, {}, {})]
    assert seeds[0] == seeds[1] == 3 and seeds[2] != seeds[3]


def test_one_check_can_be_asked_for_and_then_the_verdict_is_red(tiny_llama: Path, tmp_path: Path) -> None:
    subject = Subject.open(context(tmp_path, tiny_llama, only="weights_mismatched"))
    found = judge(subject, lambda: ReferenceOracle(subject.checkpoint))
    assert [c.name for c in found.checks] == ["weights_mismatched"]
    assert "declared, and missing" in verdict(STAGE, found).reasons[0]


def _golden(subject: Subject) -> dict[str, Any]:
    oracle, ids = ReferenceOracle(subject.checkpoint), list(range(5, 15))
    greedy, logits = oracle.greedy(ids, 40), oracle.logits(ids, [0, 9])
    return {
        "checkpoint": subject.checkpoint.digest(full=True),
        "versions": {"transformers": "5", "torch": "2"},
        "prompts": [{"ids": ids, "greedy": greedy.tokens, "margins": greedy.margins}] * 3,
        "slices": [{"prompt": 0, "rows": [0, 9], "ids": [3, 7, 11], "logits": logits[:, [3, 7, 11]].tolist()}],
    }


def test_golden_files_judge_what_they_can_and_list_the_rest(tiny_llama: Path, tmp_path: Path) -> None:
    subject = Subject.open(context(tmp_path, tiny_llama))
    assert golden.find(subject) is None
    found = from_golden(subject, _golden(subject), "no torch")
    assert all(c.ok for c in found.checks) and set(golden.CHECKS) <= {c.name for c in found.checks}
    assert "power_unnamed" in found.not_run and not verdict(STAGE, found).green


def test_golden_files_of_other_logits_are_red(tiny_llama: Path, tmp_path: Path) -> None:
    subject = Subject.open(context(tmp_path, tiny_llama))
    stored = _golden(subject)
    stored["slices"][0]["logits"][1][2] += 0.01
    assert [c.name for c in golden.judge(subject, stored) if not c.ok] == ["logits_rel_error"]


def test_caches_of_the_reference_oracle_are_its_own(tiny_llama: Path) -> None:
    oracle = ReferenceOracle(Checkpoint.open(tiny_llama))
    assert oracle.greedy([5, 6, 7], 4) == oracle.greedy([5, 6, 7], 4) and Caches() == {}


@pytest.mark.real
@pytest.mark.oracle
@pytest.mark.slow
@pytest.mark.parametrize("demo", ["demo_smollm2", "demo_gemma3"])
def test_the_real_checkpoints_are_green(demo: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    found = verdict(STAGE, STAGE.gate(context(tmp_path, request.getfixturevalue(demo))))
    assert found.green, found.reasons


def _without_torch(*args: object) -> None:
    raise ToolMissing("transformers or torch is not installed", "oracle", "pip install 'plow[oracle]'")


def test_without_the_oracle_and_without_golden_files_there_is_no_verdict(
    tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(from_golden.__globals__, "HFOracle", _without_torch)
    with pytest.raises(ToolMissing, match="oracle") as e:
        STAGE.gate(context(tmp_path, tiny_llama))
    assert e.value.exit_code == 2


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.parametrize("demo", ["demo_smollm2", "demo_gemma3"])
def test_without_the_oracle_golden_files_of_the_real_checkpoints_stand_in(
    demo: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setitem(from_golden.__globals__, "HFOracle", _without_torch)
    found = STAGE.gate(context(tmp_path, request.getfixturevalue(demo)))
    assert all(c.ok for c in found.checks) and set(golden.CHECKS) <= {c.name for c in found.checks}
    assert "golden files stand in" in found.not_run[-1]
    assert not verdict(STAGE, found).green


class OnceOracle:
    """The oracle's answers to one question, asked once."""

    def __init__(self, oracle: HFOracle, tokens: list[int]) -> None:
        self.captures, self.modules = oracle.capture(tokens), oracle.attributes()

    def capture(self, tokens: list[int], layers: list[int] | None = None) -> dict[str, np.ndarray]:
        return self.captures

    def attributes(self) -> dict[str, dict[str, Any]]:
        return self.modules


def _reds(subject: Subject, oracle: Any, seed: int) -> list[str]:
    """Details of the red lines, of the parts that name an operator."""
    subject.rng = np.random.default_rng(seed)
    checks = static.weights(subject)
    if all(c.ok for c in checks):
        checks += numeric.stated(subject, oracle) + numeric.operators(subject, oracle)
    return [c.detail for c in checks if not c.ok]


@pytest.mark.real
@pytest.mark.oracle
@pytest.mark.slow
@pytest.mark.parametrize("demo", ["demo_smollm2", "demo_gemma3"])
def test_every_flipped_attribute_of_a_real_model_is_red_and_named(
    demo: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    subject = Subject.open(context(tmp_path, request.getfixturevalue(demo), seed=1))
    right = subject.graph
    tokens = random_tokens(np.random.default_rng(1), subject.checkpoint, numeric.OPERATOR_ROWS)
    with HFOracle(subject.checkpoint.path) as hf:
        oracle = OnceOracle(hf, tokens)
    assert _reds(subject, oracle, 1) == []
    for p in perturbations(right):
        subject.graph = p.graph
        name = p.value if p.attribute == "tie" else p.node
        assert any(name in detail for detail in _reds(subject, oracle, 1)), f"{p.node}.{p.attribute} = {p.value}"

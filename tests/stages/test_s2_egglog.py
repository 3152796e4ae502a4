"""Stage 2 sees a rewrite that is wrong, incomplete, unexplained or of no use."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from stage_rig import caught, context, judged, verdict

from plow.checkpoint import Checkpoint
from plow.models import FAMILIES, build
from plow.oracle import tiny
from plow.rewrite import RULES
from stages.base import Planted
from stages.s2_egglog import STAGE
from stages.s2_egglog.declared import DECLARED
from stages.s2_egglog.explain import FILES, store, unexplained
from stages.s2_egglog.gate import fusions, judge
from stages.s2_egglog.planted import PLANTED, report
from stages.s2_egglog.subject import Subject, compile_graph


@pytest.mark.parametrize("planted", PLANTED, ids=lambda p: p.name)
def test_a_planted_fault_is_red_and_named(planted: Planted, tmp_path: Path) -> None:
    assert caught(STAGE, planted, tmp_path / "bad")


def test_a_right_rewrite_is_green_and_lists_every_fired_rule_as_not_proved(tmp_path: Path) -> None:
    found = judged(STAGE, report, tmp_path / "good")
    assert found.green, found.reasons
    listed = [line for line in found.not_run if "checkpoint A not yet certified" in line]
    assert any("norm_qkv" in line for line in listed) and len(listed) >= 5


@pytest.mark.parametrize("fixture", ["tiny_gemma3", "tiny_qwen3"])
def test_the_fusions_of_other_families_are_reached_on_their_tiny_models(
    fixture: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    checkpoint: Path = request.getfixturevalue(fixture)
    found = verdict(STAGE, judge(Subject.open(context(tmp_path, checkpoint), tmp_path / "store")))
    assert found.green, found.reasons


def test_every_family_of_the_tree_declares_its_fusions_by_known_rules() -> None:
    assert set(DECLARED) == set(FAMILIES)
    assert {d.rule for ds in DECLARED.values() for d in ds} <= set(RULES)


def test_a_family_without_a_declaration_is_red(tiny_llama: Path, tmp_path: Path) -> None:
    subject = Subject.open(context(tmp_path, tiny_llama), tmp_path / "store")
    compiled = compile_graph(subject.graph)
    assert fusions(subject, compiled)[0].ok
    subject.graph.meta["family"] = "unheard_of"
    assert not fusions(subject, compiled)[0].ok


def test_heads_that_do_not_fill_units_need_no_grouped_projection() -> None:
    config = tiny.LLAMA | {"head_dim": 16}
    ops = {d.op for d in DECLARED["llama"] if d.when(build(config))}
    assert "qkv" not in ops and "norm_linear" in ops
    assert "qkv" in {d.op for d in DECLARED["llama"] if d.when(build(tiny.LLAMA))}


def test_the_explanation_accounts_for_every_operator_or_says_which_not(tiny_llama: Path, tmp_path: Path) -> None:
    graph = build(Checkpoint.open(tiny_llama).config)
    rewritten = compile_graph(graph).rewritten
    assert unexplained(graph, rewritten) == []
    assert store(rewritten, tmp_path).keys() == set(FILES)
    first = rewritten.blocks[0]
    assert unexplained(graph, replace(rewritten, blocks=rewritten.blocks[1:])) == [f"scope {s}" for s in first.scopes]


def test_work_leaves_the_explanation(tiny_llama: Path, tmp_path: Path) -> None:
    ctx = context(tmp_path, tiny_llama)
    STAGE.work(ctx, lambda text, done=None: None)
    assert all((ctx.artifacts / name).stat().st_size > 100 for name in FILES)


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.parametrize("demo", ["demo_smollm2", "demo_gemma3"])
def test_the_real_checkpoints_are_green(demo: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    found = verdict(STAGE, STAGE.gate(context(tmp_path, request.getfixturevalue(demo))))
    assert found.green, found.reasons

"""Stage 5 sees a packet that computes something else, and bits that depend on the batch."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from stage_rig import caught, context, judged, verdict

from plow.models import build
from plow.oracle import tiny
from plow.packet.abi import Opcode
from plow.packet.codec import decode
from plow.runtime.numpy_vm import NumpyBackend
from stages.base import Planted
from stages.s5_block import STAGE
from stages.s5_block.compare import Found, against
from stages.s5_block.planted import PLANTED, STEADY, compiled, report
from stages.s5_block.probes import with_prefixes
from stages.s5_block.rig import Rig, at
from stages.s5_block.subject import contexts_of


@pytest.mark.slow
@pytest.mark.parametrize("planted", PLANTED, ids=lambda p: p.name)
def test_a_planted_fault_is_red_and_named(planted: Planted, tmp_path: Path) -> None:
    assert caught(STAGE, planted, tmp_path / "bad")


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_a_right_bundle_is_green(family: str, tmp_path: Path) -> None:
    found = judged(STAGE, lambda ctx: report(ctx, family), tmp_path / "good")
    assert found.green, found.reasons


def test_contexts_lie_at_both_sides_of_a_page_and_beyond_the_window() -> None:
    assert contexts_of(build(tiny.LLAMA)) == [1, 15, 16, 17, 33, 130]
    assert 8 + 5 in contexts_of(build(tiny.GEMMA3))
    assert max(contexts_of(build(tiny.LLAMA | {"max_position_embeddings": 40}))) == 33


def test_times_reconcile_when_blocks_and_rest_make_the_step() -> None:
    assert STEADY.unreconciled == pytest.approx(0.0) and STEADY.over_floor == pytest.approx(1.25)
    assert replace(STEADY, step=2 * STEADY.step).unreconciled == pytest.approx(0.5)


def test_a_comparison_of_nothing_and_of_nan_is_infinitely_wrong() -> None:
    found = Found()
    assert math.isinf(found.worst()[0])
    found.add("layer.0.q", 1e-6, "here")
    found.add("layer.0.k", math.inf, "there")
    found.add("layer.0.k", 1e-7, "later")
    assert found.worst() == (math.inf, "layer.0.k at there")
    assert found.first_above(["layer.0.q", "layer.0.k"], 1e-5).startswith("layer.0.k")
    assert found.first_above(["layer.0.q"], 1e-5) == ""


def test_a_value_that_the_other_side_lacks_is_listed() -> None:
    seen = Found(seen=[("here", [4], {"a": np.ones((1, 2)), "b": np.ones((1, 2))})])
    found = against(seen, {"a": np.ones((3, 2))}, [0, 4, 8])
    assert found.errors["a"][0] == 0.0 and found.not_compared == {"b"}


@pytest.mark.slow
def test_a_prefix_program_keeps_the_protocol_and_stops_the_work() -> None:
    subject = compiled("llama")
    bundle, index = with_prefixes(subject.bundle)
    whole, short = bundle.packets.programs[0], bundle.packets.programs[index[0, 3]]
    for a, b in zip(whole.by_seq(), short.by_seq(), strict=True):
        p, q = decode(a), decode(b)
        assert (p.waits, p.signals, p.worker) == (q.waits, q.signals, q.worker)
        assert (q.opcode == Opcode.NOP) == (p.node > 3)


@pytest.mark.slow
def test_values_of_a_stopped_step_are_read_by_name() -> None:
    subject = compiled("gemma3")
    bundle, index = with_prefixes(subject.bundle)
    rig = Rig(subject, NumpyBackend(bundle), index, subject.tokens())
    seen = rig.observe(rig.program(2), at([3, 5], 1))
    assert {n.outputs[0] for n in subject.fused.nodes} <= set(seen)
    assert all(np.isfinite(x).all() and len(x) == 2 for x in seen.values())
    assert {"layer.0.k", "layer.2.v"} <= set(seen)


@pytest.mark.real
@pytest.mark.oracle
@pytest.mark.slow
@pytest.mark.parametrize("demo", ["demo_smollm2", "demo_gemma3"])
def test_the_real_checkpoints_are_right(demo: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """But for their times: a test run shares the machine."""
    found = verdict(STAGE, STAGE.gate(context(tmp_path, request.getfixturevalue(demo))))
    assert not [r for r in found.reasons if not r.startswith("block_")], found.reasons

"""The whole path on tiny checkpoints: every backend computes what the graph means."""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from plow.checkpoint import Checkpoint
from plow.compile import Options, compile_checkpoint, lower, rows_argument
from plow.errors import BundleError, ConfigError, LoweringError
from plow.graph.reference import run
from plow.models import build
from plow.packet import container
from plow.packet.abi import Flag, Opcode
from plow.packet.codec import decode
from plow.runtime.bundle import load
from plow.runtime.cpu import CpuBackend
from plow.runtime.numpy_vm import NumpyBackend
from plow.runtime.step import StepBatch
from plow.schedule.simulate import simulate
from plow.tiles.forms import Lowering

FAMILIES = ("llama", "gemma3", "qwen3")
PROMPT = [3 + (7 * i) % 300 for i in range(21)]
"""Longer than a KV block and than the tiny gemma's window."""


def reference_logits(checkpoint: Path, tokens: list[int]) -> np.ndarray:
    """float64 logits at every position from the graph itself."""
    ck = Checkpoint.open(checkpoint)
    graph = build(ck.config)
    n = np.arange(len(tokens))
    step = {"tokens": np.array(tokens), "positions": n, "slots": np.zeros(len(tokens), int), "sample_rows": n}
    return run(graph, {k: ck.tensor(k) for k in graph.weights}, step, {}, np.float64)["logits"]


def pages(backend) -> np.ndarray:
    limits = backend.bundle.limits
    shuffled = np.random.default_rng(0).permutation(limits.max_slots * limits.blocks_per_seq).astype(np.int32)
    return shuffled.reshape(limits.max_slots, limits.blocks_per_seq)


def backend_logits(backend, tokens: list[int], rows: int, slot: int = 1) -> np.ndarray:
    """Logits at the end of every chunk of `rows` tokens, keyed by position order."""
    programs = sorted((p.rows, i) for i, p in enumerate(backend.bundle.packets.programs))
    index = next(i for r, i in programs if r >= rows)
    out = []
    for at in range(0, len(tokens), rows):
        part = tokens[at : at + rows]
        backend.run(
            index,
            StepBatch.greedy(part, range(at, at + len(part)), [slot] * len(part), [len(part) - 1], pages(backend)),
        )
        out.append(backend.logits(index, 1)[0].copy())
    return np.stack(out)


@pytest.fixture(params=FAMILIES)
def family(request, tiny_bundles):
    return tiny_bundles[request.param], request.getfixturevalue(f"tiny_{request.param}")


@pytest.mark.parametrize(
    "make", [CpuBackend, lambda b: NumpyBackend(b, "random:1", poison=True), lambda b: NumpyBackend(b, "last_first")]
)
def test_a_backend_computes_the_graphs_logits(family, make):
    bundle, checkpoint = family
    want = reference_logits(checkpoint, PROMPT)
    backend = make(load(bundle, allow_uncertified=True))
    got = backend_logits(backend, PROMPT, 1)
    assert np.abs(got - want).max() < 2e-4 * max(1.0, np.abs(want).max())
    backend.close()


def test_prompt_chunks_and_batches_are_bitwise_the_single_rows(family):
    backend = CpuBackend(load(family[0], allow_uncertified=True))
    single = backend_logits(backend, PROMPT, 1)
    for rows in (3, 4, 7, 16):
        chunked = backend_logits(backend, PROMPT, rows, slot=2)
        ends = [min(at + rows, len(PROMPT)) - 1 for at in range(0, len(PROMPT), rows)]
        assert np.array_equal(chunked.view(np.uint32), single[ends].view(np.uint32)), rows
    backend.close()


def test_a_mixed_step_of_decode_rows_and_a_prompt_chunk_equals_the_parts(family):
    backend = CpuBackend(load(family[0], allow_uncertified=True))
    a, b = PROMPT[:9], PROMPT[6:]
    alone_a, alone_b = backend_logits(backend, a, 1, slot=0)[-1], backend_logits(backend, b, 1, slot=3)[-1]
    backend_logits(backend, a[:-1], 1, slot=0)
    tokens, positions, slots = [a[-1], *b], [len(a) - 1, *range(len(b))], [0] + [2] * len(b)
    index = len(backend.bundle.packets.programs) - 1
    backend.run(index, StepBatch.greedy(tokens, positions, slots, [0, len(b)], pages(backend)))
    mixed = backend.logits(index, 2).copy()
    assert np.array_equal(mixed[0].view(np.uint32), alone_a.view(np.uint32))
    assert np.array_equal(mixed[1].view(np.uint32), alone_b.view(np.uint32))
    backend.close()


def test_several_steps_in_one_call_equal_single_steps(family):
    backend = CpuBackend(load(family[0], allow_uncertified=True))
    first = int(backend_logits(backend, PROMPT, 1, slot=0)[-1].argmax())
    batch = StepBatch.greedy([first], [len(PROMPT)], [0], [0], pages(backend))
    together = backend.run(0, batch, n_steps=6)[:, 0].tolist()
    one, token = [], first
    backend_logits(backend, PROMPT, 1, slot=0)
    for i in range(6):
        token = int(backend.run(0, StepBatch.greedy([token], [len(PROMPT) + i], [0], [0], pages(backend)))[0, 0])
        one.append(token)
    assert together == one
    backend.close()


def opcodes(compiled, rows: int = 1) -> dict[str, int]:
    program = next(p for p in compiled.packets.programs if p.rows == rows)
    names = [decode(r).opcode.name for r in program.by_seq()]
    return {n: names.count(n) for n in set(names)}


def compiled(checkpoint: Path, **options):
    graph = build(Checkpoint.open(checkpoint).config)
    return lower(graph, Options(max_ctx=64, rows=(1,), workers=2, **options), graph.meta["vocab_size"])


def test_disabling_rules_changes_the_packets_and_nothing_else_fuses(tiny_llama):
    fused, plain = opcodes(compiled(tiny_llama)), opcodes(compiled(tiny_llama, disabled_rules=tuple(all_rules())))
    assert "ROPE" not in fused and "NORM" not in fused and fused["QKV"]
    assert (
        "QKV" not in plain
        and plain["ROPE"] == 4
        and plain["NORM"] == 5
        and plain["ELEMENTWISE"] == 8
        and plain["KV_APPEND"] == 2
    )
    base = compiled(tiny_llama, disabled_rules=tuple(all_rules()))
    assert all(decode(r).flags == Flag(0) for r in base.packets.programs[0].by_seq())


def all_rules() -> list[str]:
    from plow.rewrite import RULES

    return list(RULES)


def test_an_unfused_bundle_computes_the_same(tiny_gemma3, tmp_path):
    options = Options(max_ctx=64, max_batch=1, rows=(1,), workers=1, disabled_rules=tuple(all_rules()))
    compile_checkpoint(tiny_gemma3, tmp_path / "b", options)
    bundle = load(tmp_path / "b", allow_uncertified=True)
    want = reference_logits(tiny_gemma3, PROMPT)
    for backend in (CpuBackend(bundle), NumpyBackend(bundle)):
        assert np.abs(backend_logits(backend, PROMPT, 1, slot=0) - want).max() < 2e-4 * np.abs(want).max()
        backend.close()


def test_every_projection_weight_is_streamed_once_and_shares_are_balanced(tiny_llama):
    program = compiled(tiny_llama).packets.programs[0]
    units: dict[int, list[tuple[int, int]]] = {}
    for r in program.by_seq():
        p = decode(r)
        if p.opcode == Opcode.LINEAR:
            units.setdefault(p.operands["weight"], []).append((p.dims["unit0"], p.dims["unit1"]))
    for spans in units.values():
        spans.sort()
        assert spans[0][0] == 0 and all(a[1] == b[0] for a, b in itertools.pairwise(spans))
        total = spans[-1][1]
        assert max(b - a for a, b in spans) <= -(-total // 2)


def test_a_simulated_step_is_never_faster_than_the_roofline(tiny_llama):
    from plow import hw

    machine = hw.load("cpu")
    sim = simulate(compiled(tiny_llama).packets.programs[0], machine, 32)
    assert sim.step_s >= sim.bound_s and all(s.wait_s >= 0 for s in sim.spans)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"target": "tpu"}, "unknown target"),
        ({"max_ctx": 100_000}, "outside"),
        ({"max_ctx": 0}, "outside"),
        ({"prompt_math": "fp8"}, "unknown"),
    ],
)
def test_a_bad_option_is_a_typed_error(tiny_llama, change, message):
    graph = build(Checkpoint.open(tiny_llama).config)
    with pytest.raises(ConfigError, match=message):
        lower(graph, Options(**({"max_ctx": 64, "rows": (1,)} | change)), 320)


@pytest.mark.parametrize("text", ["a,b", "", "0,1", "-4"])
def test_bad_rows_are_a_typed_error(text):
    with pytest.raises(ConfigError):
        rows_argument(text)


def test_an_operator_without_a_packet_form_is_a_typed_error(tiny_llama):
    from dataclasses import replace

    graph = build(Checkpoint.open(tiny_llama).config)
    with pytest.raises(LoweringError, match="no packet form"):
        Lowering(graph).form(replace(graph.nodes[0], op="conv3d"))


def test_a_foreign_output_directory_is_not_overwritten(tiny_llama, tmp_path):
    (tmp_path / "precious.txt").write_text("data")
    with pytest.raises(BundleError, match="is no bundle"):
        compile_checkpoint(tiny_llama, tmp_path, Options(max_ctx=64, rows=(1,)))
    assert (tmp_path / "precious.txt").read_text() == "data"


@pytest.mark.parametrize("name", ["model.pkt", "weights.bin", "interp.so", "config.json"])
def test_a_damaged_bundle_does_not_load(tiny_bundles, tmp_path, name):
    shutil.copytree(tiny_bundles["llama"], tmp_path / "b")
    data = bytearray((tmp_path / "b" / name).read_bytes())
    data[len(data) // 2] ^= 1
    (tmp_path / "b" / name).write_bytes(data)
    with pytest.raises(BundleError):
        load(tmp_path / "b", allow_uncertified=True)


def test_an_uncertified_bundle_does_not_load(tiny_bundles):
    with pytest.raises(BundleError, match="certif"):
        load(tiny_bundles["llama"])


def test_the_manifest_names_every_choice_with_its_source(tiny_bundles):
    manifest = json.loads((tiny_bundles["llama"] / "manifest.json").read_text())
    assert manifest["choices"]["workers"]["source"] == "default" and manifest["rewrites"]["chosen"]["qkv"] == 2
    assert (
        manifest["packets"]["sha256"] and container.load(tiny_bundles["llama"] / "model.pkt").header["target"] == "cpu"
    )

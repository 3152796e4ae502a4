"""Compiled programs of tiny models: the two interpreters, the graph's reference and the engine agree."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tiny_bundle import OPTIONS, tiny_bundle

from plow.checkpoint import Checkpoint
from plow.compile import lower
from plow.graph import reference
from plow.models import build
from plow.packet.abi import Opcode
from plow.rewrite import RULES
from plow.runtime.bundle import Bundle, load
from plow.runtime.cpu import CpuBackend
from plow.runtime.engine import Engine
from plow.runtime.llm import LLM
from plow.runtime.numpy_vm import NumpyBackend
from plow.runtime.request import Request
from plow.runtime.step import Limits, StepBatch
from plow.schedule.weights import write_image

PROMPTS = [[5], [7, 8, 9], list(range(10, 50)), list(range(100, 117))]


@pytest.fixture(params=["llama", "gemma3"])
def checkpoint(request: pytest.FixtureRequest) -> Path:
    return request.getfixturevalue(f"tiny_{request.param}")


@pytest.fixture
def bundle(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return load(tiny_bundle(checkpoint, tmp_path_factory), allow_uncertified=True)


@pytest.fixture
def cpu(bundle: Bundle) -> Iterator[CpuBackend]:
    backend = CpuBackend(bundle)
    yield backend
    backend.close()


def unfused(checkpoint: Path, out: Path) -> Bundle:
    """The checkpoint's programs with every rewrite rule disabled: one packet form a base operator."""
    ck = Checkpoint.open(checkpoint)
    compiled = lower(build(ck.config), replace(OPTIONS, disabled_rules=tuple(RULES)), valid_vocab=320)
    write_image(out / "weights.bin", compiled.weights, ck.tensor, OPTIONS.max_ctx)
    limits = Limits.from_header(compiled.packets.header)
    return Bundle(out, {"weights": {"file": "weights.bin"}}, compiled.packets, limits, certified=False)


def whole_prompt(bundle: Bundle, tokens: list[int]) -> StepBatch:
    limits = bundle.limits
    table = np.arange(limits.max_slots * limits.blocks_per_seq, dtype=np.int32).reshape(limits.max_slots, -1)
    n = len(tokens)
    return StepBatch.greedy(tokens, range(n), [2] * n, [0, n - 1], table)


@pytest.mark.parametrize("order", ["round_robin", "first_first", "last_first", "random:1", "random:2"])
def test_packets_compute_the_graph_in_every_worker_order(checkpoint: Path, bundle: Bundle, order: str) -> None:
    ck = Checkpoint.open(checkpoint)
    tokens = [3, 50, 7, 300, 21, 8, 8, 90, 14, 2, 60, 61, 62]
    n = len(tokens)
    weights = {name: ck.tensor(name) for name in ck.tensors}
    inputs = {"tokens": tokens, "positions": range(n), "slots": [0] * n, "sample_rows": [0, n - 1]}
    want = reference.run(build(ck.config), weights, {k: np.array(v) for k, v in inputs.items()}, {})["logits"]
    vm = NumpyBackend(bundle, order, poison=True)
    program = next(i for i, p in enumerate(bundle.packets.programs) if p.rows == 16)
    vm.run(program, whole_prompt(bundle, tokens))
    np.testing.assert_allclose(vm.logits(program, 2), want[:, : bundle.limits.vocab_size], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("order", ["first_first", "last_first", "random:3"])
def test_unfused_packets_compute_the_same_tokens(checkpoint: Path, bundle: Bundle, order: str, tmp_path: Path) -> None:
    plain = unfused(checkpoint, tmp_path)
    ops = {int(r["opcode"]) for packets in plain.packets.programs[0].lists for r in packets}
    assert {Opcode.ROPE, Opcode.KV_APPEND, Opcode.NORM, Opcode.ELEMENTWISE} <= ops and Opcode.QKV not in ops
    want = texts(Engine(NumpyBackend(bundle)), PROMPTS)
    assert texts(Engine(NumpyBackend(plain, order, poison=True)), PROMPTS) == want


def test_the_c_interpreter_computes_what_the_numpy_one_does(bundle: Bundle, cpu: CpuBackend) -> None:
    vm = NumpyBackend(bundle)
    batch = whole_prompt(bundle, [3, 50, 7, 300, 21, 8, 8, 90, 14, 2])
    program = next(i for i, p in enumerate(bundle.packets.programs) if p.rows == 16)
    assert vm.run(program, batch).tolist() == cpu.run(program, batch).tolist()
    np.testing.assert_allclose(cpu.logits(program, 2), vm.logits(program, 2), rtol=1e-4, atol=1e-4)


def texts(engine: Engine, prompts: list[list[int]]) -> list[list[int]]:
    ids = [engine.add(Request(p, max_tokens=24)) for p in prompts]
    found: dict[int, list[int]] = {i: [] for i in ids}
    while engine.has_work:
        for e in engine.step():
            found[e.request].append(e.token)
    return [found[i] for i in ids]


def test_greedy_text_is_the_same_alone_batched_chunked_and_in_several_steps(bundle: Bundle, cpu: CpuBackend) -> None:
    alone = [texts(Engine(cpu), [p])[0] for p in PROMPTS]
    assert texts(Engine(cpu), PROMPTS) == alone
    assert texts(Engine(cpu, chunk_rows=3), PROMPTS[::-1]) == alone[::-1]
    assert texts(Engine(cpu, steps_per_call=8), PROMPTS) == alone
    assert texts(Engine(NumpyBackend(bundle, "random:5", poison=True)), PROMPTS) == alone


def test_llm_generates_text_with_stop_strings_and_token_ids(bundle: Bundle) -> None:
    llm = LLM(bundle.path, "numpy", allow_uncertified=True)
    done = llm.generate(["hello world", [5, 6]], max_tokens=16, ignore_eos=True)
    assert [len(c.token_ids) for c in done] == [16, 16] and all(c.finish == "length" for c in done)
    assert done[0].text == llm.tokenizer.decode(done[0].token_ids)
    pieces: list[str] = []
    stop = done[0].text[4:6]
    cut = llm.generate(
        ["hello world"], max_tokens=16, ignore_eos=True, stop=[stop], on_text=lambda _, s: pieces.append(s)
    )[0]
    assert cut.finish == "stop" and cut.text == done[0].text.partition(stop)[0] == "".join(pieces)
    assert cut.timing is not None and llm.engine.blocks.used_blocks == 0
    manifest = json.loads((bundle.path / "manifest.json").read_text())
    assert list(llm.bundle.eos_token_ids) == manifest["eos_token_ids"]

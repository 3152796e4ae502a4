"""Bundles of the real checkpoints: free-running greedy text equals transformers, whatever the batch and the chunks."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from plow.compile import Options, compile_checkpoint
from plow.oracle import goldens
from plow.oracle.metrics import max_abs_error
from plow.runtime.bundle import load
from plow.runtime.cpu import CpuBackend
from plow.runtime.step import StepBatch

pytestmark = pytest.mark.real
STEPS = 64


@pytest.fixture(scope="module", params=["demo_smollm2", "demo_gemma3"])
def subject(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    """(backend, goldens, manifest) of a freshly compiled bundle."""
    checkpoint: Path = request.getfixturevalue(request.param)
    out = tmp_path_factory.mktemp("real") / "bundle"
    compile_checkpoint(checkpoint, out, Options(max_ctx=1024, rows=(1, 8, 128, 512)))
    backend = CpuBackend(load(out, allow_uncertified=True), timeout_s=60)
    yield backend, goldens.load_real(checkpoint.name), json.loads((out / "manifest.json").read_text())
    backend.close()


def pages(backend) -> np.ndarray:
    limits = backend.bundle.limits
    return np.arange(limits.max_slots * limits.blocks_per_seq, dtype=np.int32).reshape(limits.max_slots, -1)


def prompt(backend, slot: int, ids: list[int]) -> tuple[int, np.ndarray]:
    """(greedy next token, logits) after the prompt, in one chunk."""
    index = next(i for i, p in enumerate(backend.bundle.packets.programs) if p.rows >= len(ids))
    batch = StepBatch.greedy(ids, range(len(ids)), [slot] * len(ids), [len(ids) - 1], pages(backend))
    token = int(backend.run(index, batch)[0, 0])
    return token, backend.logits(index, 1)[0].copy()


def test_greedy_text_equals_transformers_on_20_prompts(subject) -> None:
    backend, golden, _ = subject
    assert len(golden["prompts"]) >= 20
    for p in golden["prompts"]:
        first, _ = prompt(backend, 0, p["ids"])
        batch = StepBatch.greedy([first], [len(p["ids"])], [0], [0], pages(backend))
        rest = backend.run(0, batch, n_steps=STEPS - 1)[:, 0].tolist()
        assert [first, *rest] == p["greedy"][:STEPS], p["text"]


def test_a_batch_of_eight_gives_every_sequence_its_own_text(subject) -> None:
    backend, golden, _ = subject
    chosen = golden["prompts"][:8]
    first = [prompt(backend, i, p["ids"])[0] for i, p in enumerate(chosen)]
    lengths = [len(p["ids"]) for p in chosen]
    batch = StepBatch.greedy(first, lengths, range(8), range(8), pages(backend))
    rest = backend.run(1, batch, n_steps=STEPS - 1).T.tolist()
    for p, token, more in zip(chosen, first, rest, strict=True):
        assert [token, *more] == p["greedy"][:STEPS], p["text"]


def test_logits_equal_transformers_within_fp32(subject) -> None:
    backend, golden, _ = subject
    worst = 0.0
    for s in golden["slices"]:
        ids = golden["prompts"][s["prompt"]]["ids"]
        for row, want in zip(s["rows"], s["logits"], strict=True):
            _, logits = prompt(backend, 1, ids[: row + 1])
            worst = max(worst, max_abs_error(np.array(want), logits[s["ids"]]))
    print(f"largest logit error {worst:.2e}")
    assert worst < 1e-3


def test_a_long_prompt_in_chunks_is_bitwise_one_chunk(subject) -> None:
    """600 tokens cross Gemma's window of 512."""
    backend, _, _ = subject
    ids = np.random.default_rng(5).integers(100, 40000, 600).tolist()
    results = []
    for slot, cut in ((0, 512), (1, 100), (2, 7)):
        for at in range(0, 600, cut):
            part = ids[at : at + cut]
            index = next(i for i, p in enumerate(backend.bundle.packets.programs) if p.rows >= len(part))
            step = StepBatch.greedy(
                part, range(at, at + len(part)), [slot] * len(part), [len(part) - 1], pages(backend)
            )
            backend.run(index, step)
        results.append(backend.logits(index, 1)[0].copy())
    assert all(np.array_equal(results[0].view(np.uint32), r.view(np.uint32)) for r in results[1:])



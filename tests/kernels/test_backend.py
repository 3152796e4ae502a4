"""CpuBackend on compiled programs: agreement with the numpy interpreter, equal bits in any batch, typed refusals."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from plow.checkpoint import Checkpoint
from plow.compile import Options, lower
from plow.errors import BundleError, RequestError, StuckDependency
from plow.models import build
from plow.packet.abi import Opcode
from plow.runtime import cpu as cpu_module
from plow.runtime.bundle import Bundle
from plow.runtime.cpu import CpuBackend
from plow.runtime.cpu_lib import allowed_cpus
from plow.runtime.numpy_vm import NumpyBackend
from plow.runtime.step import Limits, StepBatch
from plow.schedule.weights import write_image

ROWS = (1, 2, 4, 32)
WORKERS = min(2, len(allowed_cpus()))


@pytest.fixture(scope="module", params=["tiny_llama", "tiny_gemma3"])
def bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return compiled(request.getfixturevalue(request.param), tmp_path_factory.mktemp("bundle"))


def compiled(checkpoint: Path, out: Path) -> Bundle:
    ck = Checkpoint.open(checkpoint)
    options = Options(max_ctx=64, max_batch=4, rows=ROWS, workers=WORKERS)
    result = lower(build(ck.config), options, valid_vocab=300)
    write_image(out / "weights.bin", result.weights, ck.tensor, options.max_ctx)
    manifest = {"weights": {"file": "weights.bin"}, "interpreter": {"file": "interp.so", "cpu_features": []}}
    return Bundle(out, manifest, result.packets, Limits.from_header(result.packets.header), certified=False)


@pytest.fixture
def cpu(bundle: Bundle, widest: Path) -> Iterator[CpuBackend]:
    backend = CpuBackend(bundle, interpreter=widest)
    yield backend
    backend.close()


def pages(bundle: Bundle) -> np.ndarray:
    limits = bundle.limits
    order = np.random.default_rng(3).permutation(limits.num_kv_blocks).astype(np.int32)
    return order[:limits.max_slots * limits.blocks_per_seq].reshape(limits.max_slots, -1)


def chunk(bundle: Bundle, tokens: list[int], start: int = 0, slot: int = 0) -> StepBatch:
    n = len(tokens)
    return StepBatch.greedy(tokens, range(start, start + n), [slot] * n, [n - 1], pages(bundle))


def run(backend: CpuBackend | NumpyBackend, batch: StepBatch) -> np.ndarray:
    """Logits [n_samples, vocab] of the smallest program that holds the batch."""
    program = next(i for i, rows in enumerate(ROWS) if rows >= batch.n_rows)
    picked = backend.run(program, batch)
    logits = backend.logits(program, batch.n_samples).copy()
    assert picked[0].tolist() == logits.argmax(1).tolist()
    return logits


PROMPT = [5, 9, 200, 31, 7, 7, 80, 250, 13, 1, 2, 3, 4, 150, 151, 152, 153, 40, 41]


def test_the_c_interpreter_agrees_with_the_numpy_interpreter(bundle: Bundle, cpu: CpuBackend) -> None:
    oracle = NumpyBackend(bundle, poison=True)
    for batch in (chunk(bundle, PROMPT), chunk(bundle, [33], 19), chunk(bundle, [6, 8, 9], 20)):
        np.testing.assert_allclose(run(cpu, batch), run(oracle, batch), rtol=1e-4, atol=1e-4)


def test_a_prompt_has_the_bits_of_token_by_token(bundle: Bundle, cpu: CpuBackend) -> None:
    whole = run(cpu, chunk(bundle, PROMPT, slot=0))
    for i, token in enumerate(PROMPT):
        single = run(cpu, chunk(bundle, [token], i, slot=1))
    run(cpu, chunk(bundle, PROMPT[:11], slot=2))
    split = run(cpu, chunk(bundle, PROMPT[11:], 11, slot=2))
    assert np.array_equal(whole.view(np.uint32), single.view(np.uint32))
    assert np.array_equal(whole.view(np.uint32), split.view(np.uint32))


def test_batch_mates_change_no_bit(bundle: Bundle, cpu: CpuBackend) -> None:
    for slot in range(3):
        run(cpu, chunk(bundle, PROMPT[slot:], slot=slot))
    rows = [(40 + s, len(PROMPT) - s, s) for s in range(3)]
    tokens, positions, slots = zip(*rows, strict=True)
    together = run(cpu, StepBatch.greedy(tokens, positions, slots, range(3), pages(bundle)))
    for i, (token, position, slot) in enumerate(rows):
        alone = run(cpu, chunk(bundle, [token], position, slot))
        assert np.array_equal(alone[0].view(np.uint32), together[i].view(np.uint32))


def test_several_steps_in_one_call_equal_single_steps(bundle: Bundle, cpu: CpuBackend) -> None:
    first = int(run(cpu, chunk(bundle, PROMPT)).argmax())
    picked = cpu.run(0, chunk(bundle, [first], len(PROMPT)), n_steps=8)[:, 0].tolist()
    token, singles = first, []
    for i in range(8):
        token = int(cpu.run(0, chunk(bundle, [token], len(PROMPT) + i))[0, 0])
        singles.append(token)
    assert picked == singles


@pytest.mark.skipif(WORKERS == 1, reason="with one core no worker waits for another")
def test_a_dead_producer_is_a_typed_error_that_names_it(bundle: Bundle, cpu: CpuBackend) -> None:
    batch = chunk(bundle, PROMPT[:1])
    before = run(cpu, batch)
    victim = next(p for p in cpu.programs[0].lists[0] if p["opcode"] == Opcode.ATTENTION)
    cpu.interpreter.configure(timeout_s=0.05, fault_seq=int(victim["seq"]))
    with pytest.raises(StuckDependency, match=rf"packet {victim['seq']} ATTENTION .*\(worker 0\)"):
        cpu.run(0, batch)
    cpu.interpreter.configure()
    assert np.array_equal(run(cpu, batch), before)


def test_more_workers_than_cores_are_refused(bundle: Bundle, widest: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_module, "allowed_cpus", lambda: [0])
    header = {**bundle.packets.header, "workers": 2}
    other = dataclasses.replace(bundle, packets=dataclasses.replace(bundle.packets, header=header))
    with pytest.raises(BundleError, match=r"2 workers.*1 cores.*--workers 1"):
        CpuBackend(other, interpreter=widest)


def test_an_interpreter_for_another_processor_is_refused(bundle: Bundle) -> None:
    manifest = {**bundle.manifest, "interpreter": {"file": "interp.so", "cpu_features": ["amx_fp16x", "fma9"]}}
    with pytest.raises(BundleError, match="amx_fp16x, fma9"):
        CpuBackend(dataclasses.replace(bundle, manifest=manifest))


def test_a_batch_that_does_not_fit_is_refused(bundle: Bundle, cpu: CpuBackend) -> None:
    with pytest.raises(RequestError, match="do not fit"):
        cpu.run(0, chunk(bundle, [1, 2]))
    with pytest.raises(RequestError, match="no program 9"):
        cpu.run(9, chunk(bundle, [1]))
    with pytest.raises(RequestError, match="position 64"):
        cpu.run(0, chunk(bundle, [1], 64))


def test_unpinned_workers_compute_the_same(bundle: Bundle, cpu: CpuBackend, widest: Path) -> None:
    other = CpuBackend(bundle, pin=False, interpreter=widest)
    assert np.array_equal(run(other, chunk(bundle, PROMPT)), run(cpu, chunk(bundle, PROMPT)))
    other.close()


def test_a_run_leaves_the_callers_cpus_as_they_were(bundle: Bundle, cpu: CpuBackend) -> None:
    before = allowed_cpus()
    run(cpu, chunk(bundle, PROMPT))
    assert allowed_cpus() == before

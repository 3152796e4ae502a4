"""STREAM programs in the numpy interpreter compute the graph, in every order of the workers."""

from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from stream_rig import TOKENS, error, pages, program_of, prompt, reference_logits, step

from plow.packet.abi import Flag
from plow.packet.codec import decode, encode
from plow.packet.container import PacketFile
from plow.runtime.engine import Engine
from plow.runtime.numpy_vm import NumpyBackend
from plow.runtime.request import Request
from plow.runtime.sampler import sample
from plow.runtime.step import StepBatch

BOUND = 0.02
"""Relative L2 error of logits with bf16 values between packets: 0.005 to 0.011 on these models."""
ORDERS = ["round_robin", "first_first", "last_first", "random:1", "random:2"]


def bits(x: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(x).view(np.uint32)


@pytest.mark.parametrize("split_pages", [1, 32])
def test_logits_are_those_of_the_graph(model, checkpoint, bundle, split_pages):
    want = reference_logits(checkpoint(model), TOKENS)
    vm = NumpyBackend(bundle(model), "random:3", poison=True, split_pages=split_pages)
    single = prompt(vm, TOKENS, 1)
    assert error(single, want) < BOUND
    for chunk, slot in ((2, 2), (3, 3), (8, 4)):
        assert error(prompt(vm, TOKENS, chunk, slot=slot), want) < BOUND, chunk
    assert error(prompt(vm, TOKENS, 1, rows=8, slot=5), want) < BOUND


@pytest.mark.parametrize("family", ["gemma3", "qwen3"])
def test_without_the_norms_of_q_and_k_the_logits_depart(family, checkpoint, bundle):
    def without(packets: np.ndarray) -> np.ndarray:
        return encode([replace(p, flags=p.flags & ~Flag.QK_NORM) for p in map(decode, packets)])

    good = bundle(family)
    programs = [replace(r, lists=[without(x) for x in r.lists]) for r in good.packets.programs]
    bad = replace(good, packets=PacketFile(good.packets.header, programs))
    want = reference_logits(checkpoint(family), TOKENS)
    assert error(prompt(NumpyBackend(bad), TOKENS, 8), want) > 10 * BOUND
    assert error(prompt(NumpyBackend(good), TOKENS, 8), want) < BOUND


def test_the_error_is_no_larger_than_that_of_a_graph_in_bf16(model, checkpoint, bundle):
    want = reference_logits(checkpoint(model), TOKENS)
    rounded = reference_logits(checkpoint(model), TOKENS, ml_dtypes.bfloat16).astype(np.float64)
    assert error(prompt(NumpyBackend(bundle(model)), TOKENS, 8), want) < error(rounded, want)


@pytest.mark.parametrize("workers", [3, 4, 6, 7])
def test_any_number_of_workers_computes_the_same(workers, bundle):
    few, many = NumpyBackend(bundle("llama", workers)), NumpyBackend(bundle("llama"))
    assert error(prompt(few, TOKENS[:20], 4), prompt(many, TOKENS[:20], 4)) < BOUND


@pytest.mark.parametrize("length", [15, 16, 17, 33])
def test_a_context_that_ends_at_a_page_edge(length, model, checkpoint, bundle):
    want = reference_logits(checkpoint(model), TOKENS[: length + 3])
    for split_pages in (1, 32):
        vm = NumpyBackend(bundle(model), poison=True, split_pages=split_pages)
        prompt(vm, TOKENS[:length], 8)
        _, logits = step(vm, TOKENS[length : length + 3], range(length, length + 3), [1] * 3)
        assert error(logits, want[length:]) < BOUND


def test_every_order_of_the_workers_gives_the_same_bits(model, bundle):
    found = []
    for order in ORDERS:
        vm = NumpyBackend(bundle(model), order, poison=True, split_pages=1)
        prompt(vm, TOKENS[:35], 8, slot=0)
        prompt(vm, TOKENS[5:24], 8, slot=3)
        tokens, logits = step(vm, [TOKENS[35], 9], [35, 19], [0, 3], n_steps=4)
        found.append((tokens.tolist(), bits(logits).tolist()))
    assert all(f == found[0] for f in found)


@pytest.mark.parametrize("rows", [2, 4, 8])
def test_a_batch_of_sequences_of_different_lengths(rows, model, checkpoint, bundle):
    vm = NumpyBackend(bundle(model), "last_first", poison=True, split_pages=1)
    lengths = [17, 1, 33, 16, 5, 24, 2, 9][: max(rows - 1, 2)]
    for slot, n in enumerate(lengths):
        prompt(vm, TOKENS[slot : slot + n], 8, slot=slot)
    tokens = [TOKENS[slot + n] for slot, n in enumerate(lengths)]
    _, logits = step(vm, tokens, lengths, range(len(lengths)), rows)
    for slot, n in enumerate(lengths):
        want = reference_logits(checkpoint(model), TOKENS[slot : slot + n + 1])[-1:]
        assert error(logits[slot : slot + 1], want) < BOUND, slot


def test_a_row_has_the_same_bits_whatever_its_batch_mates(model, bundle):
    vm = NumpyBackend(bundle(model), poison=True, split_pages=1)
    for slot in range(8):
        prompt(vm, TOKENS[slot : slot + 20 + slot], 8, slot=slot)
    lengths = [20 + slot for slot in range(8)]
    _, together = step(vm, TOKENS[:8], lengths, range(8))
    for slot in (0, 3, 7):
        _, alone = step(vm, [TOKENS[slot]], [lengths[slot]], [slot], rows=8)
        assert (bits(alone[0]) == bits(together[slot])).all()
    mixed = [5, 2, 6]
    _, some = step(vm, [TOKENS[s] for s in mixed], [lengths[s] for s in mixed], mixed, rows=8)
    assert (bits(some) == bits(together[mixed])).all()


def test_a_mixed_step_of_decode_rows_and_a_prompt_chunk(model, checkpoint, bundle):
    vm = NumpyBackend(bundle(model), "random:7", poison=True, split_pages=1)
    prompt(vm, TOKENS[:17], 8, slot=2)
    prompt(vm, TOKENS[:14], 8, slot=6)
    tokens, positions, slots = [TOKENS[17], *TOKENS[14:19]], [17, *range(14, 19)], [2, *[6] * 5]
    _, logits = step(vm, tokens, positions, slots, rows=8)
    want = reference_logits(checkpoint(model), TOKENS[:19])
    assert error(logits, want[[17, 14, 15, 16, 17, 18]]) < BOUND


def test_several_steps_in_a_call_are_the_single_steps(model, bundle):
    vm = NumpyBackend(bundle(model), "random:4", poison=True)
    for slot in (0, 1):
        prompt(vm, TOKENS[: 14 + slot], 8, slot=slot)
    together, last = step(vm, [4, 5], [14, 15], [0, 1], n_steps=5)
    tokens, one = [4, 5], []
    for i in range(5):
        found, logits = step(vm, tokens, [14 + i, 15 + i], [0, 1])
        tokens = found[0].tolist()
        one.append(tokens)
    assert together.tolist() == one and (bits(last) == bits(logits)).all()


def test_only_wanted_rows_are_sampled_and_in_their_order(bundle):
    vm = NumpyBackend(bundle("llama"))
    index = program_of(vm.bundle, 4)
    batch = StepBatch.greedy(TOKENS[:4], range(4), [1] * 4, [3, 1], pages(vm.bundle))
    picked = vm.run(index, batch)[0]
    assert picked.tolist() == vm.logits(index, 2).argmax(axis=1).tolist()
    every = prompt(vm, TOKENS[:4], 4, slot=2)
    assert (bits(vm.logits(index, 4)) == bits(every)).all() and picked.tolist() == every[[3, 1]].argmax(axis=1).tolist()


def test_rows_with_a_temperature_are_drawn_from_the_logits(bundle):
    vm = NumpyBackend(bundle("llama"))
    index = program_of(vm.bundle, 2)
    batch = StepBatch.greedy([5, 9], [0, 0], [0, 1], [0, 1], pages(vm.bundle))
    batch.temperature[:], batch.seed[:] = [0, 50.0], [0, 12]
    picked = vm.run(index, batch, n_steps=3)
    logits = vm.logits(index, 2)
    assert picked[2].tolist() == [int(logits[0].argmax()), sample(logits[1], 50.0, 0, 1.0, 0.0, 12, 2)]


def test_the_engine_runs_it(bundle):
    def texts(engine: Engine, prompts: list[list[int]]) -> list[list[int]]:
        ids = [engine.add(Request(p, max_tokens=12)) for p in prompts]
        found: dict[int, list[int]] = {i: [] for i in ids}
        while engine.has_work:
            for e in engine.step():
                found[e.request].append(e.token)
        return [found[i] for i in ids]

    prompts = [[5], [7, 8, 9], TOKENS[:30], TOKENS[9:26]]
    alone = [texts(Engine(NumpyBackend(bundle("llama"))), [p])[0] for p in prompts]
    assert texts(Engine(NumpyBackend(bundle("llama"), "last_first", poison=True)), prompts) == alone
    assert texts(Engine(NumpyBackend(bundle("llama")), steps_per_call=4), prompts) == alone

"""SAMPLE: greedy, the cuts and the seeded draw agree with the reference sampler; fed-back steps."""

from __future__ import annotations

import numpy as np
import pytest
from rig import Lib, Rig, Rng, step, stride

from plow.packet.abi import Domain, Opcode
from plow.packet.codec import Packet
from plow.runtime.sampler import sample
from plow.runtime.step import StepBatch


def sampler(rig: Rig, logits: np.ndarray, vocab: int | None = None) -> Packet:
    s, width = logits.shape
    dims = {"row0": 0, "row1": s, "row_step": 1, "vocab": vocab or width, "logits_stride": stride(width)}
    return Packet(Opcode.SAMPLE, {"logits": rig.rows(logits)}, dims, domain=Domain.SAMPLES)


def pick(lib: Lib, logits: np.ndarray, batch: StepBatch, vocab: int | None = None) -> list[int]:
    rig = Rig(lib)
    return rig.run([sampler(rig, logits, vocab)], batch)[0].tolist()


def reference(logits: np.ndarray, b: StepBatch) -> list[int]:
    return [sample(row, float(b.temperature[i]), int(b.top_k[i]), float(b.top_p[i]), float(b.min_p[i]), int(b.seed[i]),
                   int(b.positions[b.sample_rows[i]])) for i, row in enumerate(logits)]


@pytest.mark.parametrize("vocab", [1, 2, 15, 16, 17, 33, 1000, 4099])
def test_greedy_takes_the_largest_logit(lib: Lib, rng: Rng, vocab: int) -> None:
    logits = rng.standard_normal((6, vocab)).astype(np.float32)
    assert pick(lib, logits, step(6, 6)) == logits.argmax(1).tolist()


@pytest.mark.parametrize("at", [(3, 40), (16, 17), (31, 15), (0, 99), (99, 84)])
def test_greedy_takes_the_lowest_of_equal_logits(lib: Lib, rng: Rng, at: tuple[int, int]) -> None:
    logits = rng.standard_normal((1, 100)).astype(np.float32)
    logits[0, list(at)] = 9.0
    assert pick(lib, logits, step(1, 1)) == [min(at)]


def test_ids_beyond_the_vocabulary_are_never_picked(lib: Lib) -> None:
    logits = np.arange(64, dtype=np.float32)[None]
    assert pick(lib, logits, step(1, 1), vocab=50) == [49]
    drawn = {pick(lib, logits * 0, step(1, 1, temperature=1.0, seed=i), vocab=3)[0] for i in range(40)}
    assert drawn == {0, 1, 2}


def test_greedy_with_only_minus_infinity_stays_in_the_vocabulary(lib: Lib) -> None:
    assert pick(lib, np.full((1, 20), -np.inf, np.float32), step(1, 1)) == [0]


CUTS = [{}, {"top_k": 1}, {"top_k": 7}, {"top_p": 0.9}, {"top_p": 0.05}, {"min_p": 0.1}, {"min_p": 1.0},
        {"top_k": 50, "top_p": 0.8, "min_p": 0.02}, {"top_k": 5000}, {"temperature": 0.2}, {"temperature": 3.0}]


@pytest.mark.parametrize("cut", CUTS, ids=str)
@pytest.mark.parametrize("spread", [0.1, 3.0, 30.0])
def test_draws_equal_the_reference_sampler(lib: Lib, rng: Rng, cut: dict[str, float], spread: float) -> None:
    n = 40
    logits = (rng.standard_normal((n, 3000)) * spread).astype(np.float32)
    batch = step(n, n, positions=np.arange(n) * 3, **{"temperature": 1.0, **cut}, seed=rng.integers(1 << 63, size=n))
    assert pick(lib, logits, batch) == reference(logits, batch)


def test_equal_logits_are_ranked_by_id(lib: Lib) -> None:
    n = 60
    logits = np.tile(np.array([1, 2, 2, 2, 0, 2], np.float32), (n, 1))
    batch = step(n, n, temperature=1.0, top_k=2, seed=np.arange(n))
    drawn = pick(lib, logits, batch)
    assert drawn == reference(logits, batch) and set(drawn) == {1, 2}


def test_minus_infinity_is_never_drawn(lib: Lib, rng: Rng) -> None:
    logits = rng.standard_normal((50, 40)).astype(np.float32)
    logits[:, 5:] = -np.inf
    assert max(pick(lib, logits, step(50, 50, temperature=2.0, seed=np.arange(50)))) < 5


def test_a_draw_depends_on_seed_and_position_alone(lib: Lib, rng: Rng) -> None:
    row = rng.standard_normal(500).astype(np.float32)
    sampling = {"temperature": 1.0, "seed": [5, 9, 5]}
    a, b, c = pick(lib, np.tile(row, (3, 1)), step(3, 3, positions=[7, 7, 7], **sampling))
    assert a == c and pick(lib, row[None], step(1, 1, positions=[7], temperature=1.0, seed=9)) == [b]
    elsewhere = [pick(lib, row[None], step(1, 1, positions=[p], temperature=1.0, seed=5))[0] for p in range(8)]
    assert len(set(elsewhere)) > 1


def test_greedy_and_drawn_samples_mix_in_one_step(lib: Lib, rng: Rng) -> None:
    logits = rng.standard_normal((8, 300)).astype(np.float32)
    batch = step(8, 8, temperature=[0, 1, 0, 0.5, 2, 0, 1, 1], top_k=[0, 0, 3, 3, 0, 9, 2, 0], seed=np.arange(8))
    assert pick(lib, logits, batch) == reference(logits, batch)


def test_fed_back_steps_draw_at_successive_positions(lib: Lib, rng: Rng) -> None:
    rig, steps = Rig(lib), 5
    logits = rng.standard_normal((2, 400)).astype(np.float32)
    batch = step(2, 2, positions=[3, 11], temperature=1.0, seed=[1, 2])
    picked = rig.run([sampler(rig, logits)], batch, n_steps=steps)
    for e in range(steps):
        at = step(2, 2, positions=[3 + e, 11 + e], temperature=1.0, seed=[1, 2])
        assert picked[e].tolist() == reference(logits, at)
    assert batch.positions.tolist() == [3, 11], "the caller's batch must stay as it is"

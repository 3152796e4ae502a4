"""Continuous batching over a fake backend whose tokens depend on every KV position."""

from __future__ import annotations

import random

import pytest
from fake_backend import FakeBackend, greedy, next_logits

from plow.errors import RequestError, StuckDependency
from plow.runtime.engine import Engine
from plow.runtime.request import ContextTooLong, Event, Request
from plow.runtime.sampler import SamplingParams, log_softmax


def finish(engine: Engine) -> dict[int, list[Event]]:
    events: dict[int, list[Event]] = {}
    while engine.has_work:
        for e in engine.step():
            events.setdefault(e.request, []).append(e)
    return events


def tokens(events: list[Event]) -> list[int]:
    return [e.token for e in events if e.token is not None]


def prompt(n: int, seed: int = 0) -> list[int]:
    return [random.Random(seed).randrange(320) for _ in range(n)]


@pytest.mark.parametrize("steps_per_call", [1, 4])
@pytest.mark.parametrize("blocks", [16, 6])
def test_greedy_text_is_the_same_alone_and_among_others(steps_per_call: int, blocks: int) -> None:
    backend = FakeBackend(num_kv_blocks=blocks)
    engine = Engine(backend, chunk_rows=5, steps_per_call=steps_per_call)
    rng = random.Random(1)
    cases = [(prompt(rng.randint(1, 40), i), rng.randint(1, 20)) for i in range(20)]
    ids, events = {}, {}
    for i, (p, n) in enumerate(cases):
        ids[engine.add(Request(p, max_tokens=n))] = i
        if i % 3 == 0:  # arrivals while others run
            for e in engine.step():
                events.setdefault(e.request, []).append(e)
    for request, more in finish(engine).items():
        events.setdefault(request, []).extend(more)
    for request, i in ids.items():
        p, n = cases[i]
        assert tokens(events[request]) == greedy(p, n), i
        assert events[request][-1].finish == "length"
    assert engine.blocks.used_blocks == 0 and engine.blocks.free_slots == 4
    assert all(len(b.tokens) <= 16 for b in backend.batches)


def test_a_step_mixes_decode_rows_with_prompt_chunks_of_the_budget() -> None:
    backend = FakeBackend()
    engine = Engine(backend, chunk_rows=6)
    engine.add(Request(prompt(3), max_tokens=8))
    engine.step()
    engine.add(Request(prompt(14, 2), max_tokens=2))
    for _ in range(3):
        engine.step()
    assert [b.n_rows for b in backend.batches] == [3, 7, 7, 3]
    assert [b.n_samples for b in backend.batches] == [1, 1, 1, 2]
    rows = [backend.bundle.packets.programs[p].rows for p in backend.programs]
    assert rows == [4, 8, 8, 4], "the smallest program that fits"


def test_a_lone_prompt_uses_the_largest_program() -> None:
    backend = FakeBackend()
    engine = Engine(backend, chunk_rows=2)
    engine.add(Request(prompt(30), max_tokens=1))
    engine.step()
    assert backend.batches[0].n_rows == 16


def test_a_stop_token_ends_the_text_even_inside_a_multi_step_call() -> None:
    p = prompt(4)
    want = greedy(p, 12)
    stop = want[5]
    for steps in (1, 4, 12):
        engine = Engine(FakeBackend(), steps_per_call=steps)
        request = engine.add(Request(p, max_tokens=12, stop_ids=frozenset({stop})))
        events = finish(engine)[request]
        assert tokens(events) == want[: want.index(stop) + 1]
        assert [e.finish for e in events][-1] == "stop" and not any(e.finish for e in events[:-1])
        assert engine.blocks.used_blocks == 0


def test_multi_step_calls_stop_when_somebody_waits_or_looks_at_logits() -> None:
    backend = FakeBackend(max_slots=1, rows=(1, 2, 4))
    engine = Engine(backend, steps_per_call=4)
    engine.add(Request(prompt(1), max_tokens=6))
    engine.add(Request(prompt(1, 3), max_tokens=6))
    first = engine.step()
    assert len(first) == 1, "a request waits: one token at a time"
    backend2 = FakeBackend()
    engine = Engine(backend2, steps_per_call=4)
    engine.add(Request(prompt(1), max_tokens=6, logprobs=2))
    assert len(engine.step()) == 1
    engine = Engine(FakeBackend(), steps_per_call=4)
    engine.add(Request(prompt(1), max_tokens=6))
    assert len(engine.step()) == 4, "nobody waits"


def test_by_default_a_call_has_as_many_steps_as_fit_into_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = FakeBackend(step_s=0.001)
    backend.steps_per_call = 16
    engine = Engine(backend)
    engine.add(Request(prompt(1), max_tokens=60))
    calls = [len(engine.step()) for _ in range(2)]
    assert calls[0] == 1 and 2 <= calls[1] <= 16
    monkeypatch.setattr("plow.runtime.engine.CALL_S", 1e-6)
    assert len(engine.step()) == 1


def test_abort_frees_blocks_at_once_waiting_or_running() -> None:
    engine = Engine(FakeBackend(num_kv_blocks=4))
    a = engine.add(Request(prompt(20), max_tokens=44))
    b = engine.add(Request(prompt(20, 1), max_tokens=44))
    engine.step()
    assert (engine.running, engine.waiting, engine.blocks.used_blocks) == (1, 1, 4)
    assert engine.abort(b).finish == "abort" and engine.waiting == 0
    event = engine.abort(a)
    assert event.finish == "abort" and event.token is None
    assert engine.blocks.used_blocks == 0 and not engine.has_work
    assert engine.abort(a) is None, "a second abort is harmless"
    assert engine.metrics.finished == {"stop": 0, "length": 0, "abort": 2}
    assert not engine.metrics.ttft, "an aborted request never counts as fast"


def test_requests_are_admitted_in_order_and_only_when_their_blocks_are_free() -> None:
    engine = Engine(FakeBackend(num_kv_blocks=5))
    big = engine.add(Request(prompt(10), max_tokens=40))  # 4 blocks
    big2 = engine.add(Request(prompt(10, 1), max_tokens=40))
    small = engine.add(Request(prompt(3, 2), max_tokens=2))  # would fit, but waits its turn
    engine.step()
    assert engine.running == 1 and engine.waiting == 2
    events = finish(engine)
    assert tokens(events[big2]) == greedy(prompt(10, 1), 40)
    assert tokens(events[small]) == greedy(prompt(3, 2), 2)
    assert len(events[big]) == 39, "one came from the first step"


@pytest.mark.parametrize(
    ("n", "max_tokens", "allowed"),
    [
        (63, 1, 1),
        (63, None, 1),
        (10, None, 54),
        (1, 63, 63),
        (64, 1, 0),
        (64, None, 0),
        (65, 1, 0),
        (63, 2, 0),
        (1, 64, 0),
    ],
)
def test_prompt_and_answer_must_fit_the_context(n: int, max_tokens: int | None, allowed: int) -> None:
    engine = Engine(FakeBackend())
    if not allowed:
        with pytest.raises(ContextTooLong, match="exceed the context of 64"):
            engine.add(Request(prompt(n), max_tokens=max_tokens))
        return
    request = engine.add(Request(prompt(n), max_tokens=max_tokens))
    assert tokens(finish(engine)[request]) == greedy(prompt(n), allowed)


@pytest.mark.parametrize(
    "bad",
    [
        {"prompt": []},
        {"prompt": [320]},
        {"prompt": [-1]},
        {"max_tokens": 0},
        {"max_tokens": -1},
        {"logprobs": 21},
        {"logprobs": -1},
    ],
)
def test_an_unservable_request_is_refused_before_it_queues(bad: dict) -> None:
    engine = Engine(FakeBackend())
    with pytest.raises(RequestError):
        engine.add(Request(**{"prompt": [1], "max_tokens": 4, **bad}))
    assert not engine.has_work


def test_a_request_larger_than_the_pool_is_refused_rather_than_queued_for_ever() -> None:
    engine = Engine(FakeBackend(num_kv_blocks=2))
    with pytest.raises(ContextTooLong, match="2 KV blocks"):
        engine.add(Request(prompt(20), max_tokens=20))


def test_a_failed_step_drops_its_requests_and_the_engine_goes_on() -> None:
    backend = FakeBackend(fail_at=2)
    engine = Engine(backend)
    engine.add(Request(prompt(3), max_tokens=9))
    with pytest.raises(StuckDependency):
        finish(engine)
    assert not engine.has_work and engine.blocks.used_blocks == 0
    again = engine.add(Request(prompt(3), max_tokens=9))
    assert tokens(finish(engine)[again]) == greedy(prompt(3), 9)


@pytest.mark.parametrize("forgetful", [False, True])
def test_requests_outside_a_failed_batch_go_on(forgetful: bool) -> None:
    """One row a step: the second request has tokens of its own when the first one's step fails."""
    backend = FakeBackend(rows=(1,), fail_at=6, forgetful=forgetful)
    engine = Engine(backend)
    prompts = [prompt(3, 1), prompt(3, 2), prompt(3, 3)]
    ids = [engine.add(Request(p, max_tokens=5)) for p in prompts]
    with pytest.raises(StuckDependency):
        finish(engine)
    left = [i for i in ids if engine.has(i)]
    assert len(left) == 2 and backend.recovered == 1
    done = finish(engine)
    for i in left:
        assert tokens(done[i]) == greedy(prompts[ids.index(i)], 5)[-len(tokens(done[i])):]
    assert engine.blocks.used_blocks == 0


def test_without_recovery_nobody_is_left_waiting() -> None:
    engine = Engine(FakeBackend(rows=(1,), fail_at=1, gone=True))
    ids = [engine.add(Request(prompt(3, i), max_tokens=5)) for i in range(3)]
    with pytest.raises(StuckDependency, match="gone"):
        finish(engine)
    assert not any(map(engine.has, ids)) and engine.blocks.used_blocks == 0


def test_sampled_text_depends_on_its_seed_and_not_on_batch_mates() -> None:
    params = SamplingParams(temperature=1.0, top_k=50, seed=11)

    def text(mates: int, sampling: SamplingParams = params) -> list[int]:
        engine = Engine(FakeBackend(), chunk_rows=3)
        for i in range(mates):
            engine.add(Request(prompt(9, 50 + i), SamplingParams(0.7, seed=i), max_tokens=10))
        request = engine.add(Request(prompt(7), sampling, max_tokens=10))
        return tokens(finish(engine)[request])

    assert text(0) == text(3)
    assert text(0) != text(0, SamplingParams(temperature=1.0, top_k=50, seed=12))


def test_logprobs_are_those_of_the_chosen_and_the_likeliest_tokens() -> None:
    engine = Engine(FakeBackend())
    p = prompt(5)
    request = engine.add(Request(p, max_tokens=3, logprobs=2))
    engine.add(Request(prompt(4, 9), max_tokens=3))
    events = finish(engine)
    context = list(p)
    for e in events[request]:
        values = log_softmax(next_logits(context))
        assert e.logprob.logprob == pytest.approx(values[e.token])
        assert [t for t, _ in e.logprob.top] == (-values).argsort()[:2].tolist()
        context.append(e.token)
    assert all(e.logprob is None for e in events[1])


def test_metrics_count_and_time_finished_requests() -> None:
    engine = Engine(FakeBackend(step_s=0.002))
    engine.add(Request(prompt(5), max_tokens=4))
    engine.add(Request(prompt(5, 1), max_tokens=1))
    finish(engine)
    m = engine.snapshot()
    assert m["prompt_tokens"] == 10 and m["generated_tokens"] == 5 and m["finished"]["length"] == 2
    assert m["rows"] == 10 + 3 and m["used_blocks"] == 0
    assert 0.002 <= m["ttft_s"]["p50"] < 1 and 0.002 <= m["tpot_s"]["p50"] < 1


def test_more_sequences_than_samples_still_all_finish() -> None:
    backend = FakeBackend(max_slots=4, rows=(1, 2))
    engine = Engine(backend)
    ids = [engine.add(Request(prompt(3, i), max_tokens=5)) for i in range(4)]
    events = finish(engine)
    assert [tokens(events[r]) for r in ids] == [greedy(prompt(3, i), 5) for i in range(4)]


def test_engine_options_are_checked() -> None:
    with pytest.raises(RequestError):
        Engine(FakeBackend(), chunk_rows=0)

"""The engine on its thread: events reach the right loop, cancelling frees, failures are told to everybody."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest
from fake_backend import FakeBackend, greedy

from plow.errors import StuckDependency
from plow.runtime.async_engine import AsyncEngine, Mailbox, Ticket
from plow.runtime.engine import Engine
from plow.runtime.request import ContextTooLong, EngineStopped, Event, Overloaded, Request


@pytest.fixture
def make() -> Iterator:
    made: list[AsyncEngine] = []

    def new(max_waiting: int = 256, **kw: object) -> AsyncEngine:
        made.append(AsyncEngine(Engine(FakeBackend(**kw)), max_waiting))
        return made[-1]

    yield new
    for engine in made:
        engine.close()
        assert not engine.alive


async def read(mailbox: Mailbox) -> list[Event]:
    events = []
    while not events or not events[-1].finish:
        events.append((await mailbox.get())[1])
    return events


async def until(condition) -> None:
    for _ in range(1000):
        if condition():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("the condition never came")


def test_concurrent_requests_get_their_own_tokens_from_one_thread(make) -> None:
    engine = make()

    async def one(i: int) -> list[int]:
        mailbox = Mailbox()
        engine.submit(Request([i + 1, 7], max_tokens=12), mailbox)
        return [e.token for e in await read(mailbox)]

    async def main() -> list[list[int]]:
        return await asyncio.gather(*(one(i) for i in range(12)))

    assert asyncio.run(main()) == [greedy([i + 1, 7], 12) for i in range(12)]
    assert engine.engine.backend.threads and threading.get_ident() not in engine.engine.backend.threads
    assert len(engine.engine.backend.threads) == 1


def test_cancelling_frees_the_blocks_and_ends_the_events(make) -> None:
    engine = make(step_s=0.002)

    async def main() -> None:
        mailbox = Mailbox()
        ticket = engine.submit(Request([1], max_tokens=63), mailbox)
        await mailbox.get()
        ticket.cancel()
        ticket.cancel()
        assert (await read(mailbox))[-1].finish == "abort"
        await until(lambda: engine.engine.blocks.used_blocks == 0)

    asyncio.run(main())


def test_a_failed_step_reaches_every_request_and_new_ones_work(make) -> None:
    engine = make(fail_at=3)

    async def main() -> None:
        boxes = [Mailbox() for _ in range(3)]
        for i, b in enumerate(boxes):
            engine.submit(Request([i + 1], max_tokens=30), b)
        for b in boxes:
            with pytest.raises(StuckDependency):
                await read(b)
        assert "counter 3" in engine.last_error
        again = Mailbox()
        engine.submit(Request([5], max_tokens=4), again)
        assert [e.token for e in await read(again)] == greedy([5], 4)

    asyncio.run(main())


def test_a_bug_in_the_engine_is_told_and_not_waited_for(make, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make()
    monkeypatch.setattr(threading, "excepthook", lambda args: None)
    monkeypatch.setattr(engine.engine.backend, "run", lambda *a: 1 / 0)

    async def main() -> None:
        mailbox = Mailbox()
        engine.submit(Request([5], max_tokens=4), mailbox)
        with pytest.raises(ZeroDivisionError):
            await read(mailbox)
        await until(lambda: not engine.alive)

    asyncio.run(main())


def test_a_full_queue_and_a_hopeless_request_are_refused_at_once(make) -> None:
    engine = make(max_waiting=2, step_s=0.05, max_slots=1, rows=(1, 4))

    async def main() -> None:
        with pytest.raises(ContextTooLong):
            engine.submit(Request([1], max_tokens=64), Mailbox())
        tickets = [engine.submit(Request([1], max_tokens=63), Mailbox())]
        await until(lambda: engine.engine.running == 1)
        tickets += [engine.submit(Request([1], max_tokens=9), Mailbox()) for _ in range(2)]
        with pytest.raises(Overloaded):
            engine.submit(Request([1], max_tokens=9), Mailbox())
        for t in tickets:
            t.cancel()
        await until(lambda: not engine.engine.has_work)

    asyncio.run(main())


def test_closing_ends_running_requests(make) -> None:
    engine = make(step_s=0.002)

    async def main() -> str:
        mailbox = Mailbox()
        engine.submit(Request([1], max_tokens=63), mailbox)
        await mailbox.get()
        await asyncio.to_thread(engine.close)
        return (await read(mailbox))[-1].finish

    assert asyncio.run(main()) == "abort"


def test_a_request_on_its_way_while_the_engine_ends_is_not_left_waiting(make) -> None:
    engine = make()

    async def main() -> None:
        engine._commands.put(None)
        mailbox = Mailbox()
        engine._commands.put(lambda: engine._add(Ticket(engine, mailbox, 0), Request([1], max_tokens=9)))
        assert (await asyncio.wait_for(read(mailbox), 5))[-1].finish == "abort"
        await until(lambda: not engine.alive)
        with pytest.raises(EngineStopped):
            engine.submit(Request([1], max_tokens=9), Mailbox())

    asyncio.run(main())

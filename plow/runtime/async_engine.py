"""AsyncEngine: an Engine on a thread of its own, for an event loop."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable

from plow.errors import PlowError
from plow.runtime.engine import Engine
from plow.runtime.request import EngineStopped, Event, Finish, Overloaded, Request

Item = Event | Exception


class Mailbox:
    """Events of one or several requests, read by the event loop that made it."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._items: asyncio.Queue[tuple[int, Item]] = asyncio.Queue()

    async def get(self) -> tuple[int, Event]:
        """(index that the request was submitted with, its next event). Raises the error of a failed step."""
        index, item = await self._items.get()
        if isinstance(item, Exception):
            raise item
        return index, item

    def deliver(self, index: int, items: list[Item]) -> None:
        """From the engine's thread."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._put, index, items)

    def _put(self, index: int, items: list[Item]) -> None:
        for item in items:
            self._items.put_nowait((index, item))


class Ticket:
    """A submitted request."""

    def __init__(self, engine: AsyncEngine, mailbox: Mailbox, index: int) -> None:
        self._engine, self.mailbox, self.index = engine, mailbox, index
        self.id = -1
        """The engine's number of it, known once its thread has queued the request."""

    def cancel(self, reason: Finish = "abort") -> None:
        """End the request; its blocks are free before the engine's next step. Harmless after its end."""
        self._engine.cancel(self, reason)


class AsyncEngine:
    """All engine calls happen on one thread; the loop only sends it commands. max_waiting: requests that may queue."""

    def __init__(self, engine: Engine, max_waiting: int = 256) -> None:
        self.engine = engine
        self.max_waiting = max_waiting
        self.last_error: str | None = None
        self._commands: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._tickets: dict[int, Ticket] = {}
        self._open = True
        self._thread = threading.Thread(target=self._run, name="plow-engine", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._open and self._thread.is_alive()

    def submit(self, request: Request, mailbox: Mailbox, index: int = 0) -> Ticket:
        """Queue a request whose events go to `mailbox` under `index`. Raises RequestError (Overloaded, ...)."""
        request.check(self.engine.limits)
        if not self.alive:
            raise EngineStopped("the engine has stopped", self.last_error or "", "restart the server")
        waiting = self.engine.waiting + self._commands.qsize()
        if waiting >= self.max_waiting:
            raise Overloaded(f"{waiting} requests are waiting", "queue", "try again later")
        ticket = Ticket(self, mailbox, index)
        self._commands.put(lambda: self._add(ticket, request))
        return ticket

    def cancel(self, ticket: Ticket, reason: Finish) -> None:
        self._commands.put(lambda: self._cancel(ticket, reason))

    def close(self) -> None:
        """End every request and the thread."""
        self._commands.put(None)
        self._thread.join()

    def _add(self, ticket: Ticket, request: Request) -> None:
        ticket.id = self.engine.add(request)
        self._tickets[ticket.id] = ticket

    def _cancel(self, ticket: Ticket, reason: Finish) -> None:
        event = self.engine.abort(ticket.id, reason)
        if event:
            self._deliver([event])

    def _run(self) -> None:
        try:
            while self._obey():
                try:
                    self._deliver(self.engine.step())
                except PlowError as error:
                    self._fail(error)
            self._end(None)
        except Exception as error:
            self._end(error)
            raise

    def _end(self, error: Exception | None) -> None:
        """Nobody may be left waiting: refuse new requests, take the ones on their way, and end them all."""
        self._open = False
        while not self._commands.empty():
            if command := self._commands.get():
                command()
        ended = self.engine.abort_all()
        if error is None:
            self._deliver(ended)
        else:
            self._fail(error)

    def _obey(self) -> bool:
        """Carry out the commands at hand, waiting for one when there is no work; False at the end."""
        while not self.engine.has_work or not self._commands.empty():
            command = self._commands.get()
            if command is None:
                return False
            command()
        return True

    def _deliver(self, events: list[Event]) -> None:
        grouped: dict[int, list[Item]] = {}
        for event in events:
            grouped.setdefault(event.request, []).append(event)
        for request, items in grouped.items():
            ticket = self._tickets[request]
            ticket.mailbox.deliver(ticket.index, items)
        for event in events:
            if event.finish:
                self._tickets.pop(event.request, None)

    def _fail(self, error: Exception) -> None:
        """Every request that the engine has dropped learns what happened; a typed error does not concern the others."""
        self.last_error = str(error)
        for id, ticket in list(self._tickets.items()):
            if not self.engine.has(id):
                ticket.mailbox.deliver(ticket.index, [error])
                del self._tickets[id]

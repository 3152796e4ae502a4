"""AsyncEngine: an Engine on a thread of its own, for an event loop."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import AsyncIterator, Callable

from plow.errors import PlowError, RequestError
from plow.runtime.engine import Engine
from plow.runtime.request import Event, Overloaded, Request

Item = Event | Exception


class Stream:
    """Events of one request, read by the event loop that submitted it."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._loop = asyncio.get_running_loop()
        self._items: asyncio.Queue[Item] = asyncio.Queue()
        self.id = -1
        """Set by the engine's thread when the request is queued there."""

    async def __aiter__(self) -> AsyncIterator[Event]:
        """Raises the engine's error when the step that served this request failed."""
        while True:
            item = await self._items.get()
            if isinstance(item, Exception):
                raise item
            yield item
            if item.finish:
                return

    def cancel(self) -> None:
        """Abort the request; its blocks are free before the engine's next step. Harmless after its end."""
        self._engine.cancel(self)

    def put(self, items: list[Item]) -> None:
        for item in items:
            self._items.put_nowait(item)

    def deliver(self, items: list[Item]) -> None:
        """From the engine's thread."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.put, items)


class AsyncEngine:
    """All engine calls happen on one thread; the loop only sends it commands. max_waiting: requests that may queue."""

    def __init__(self, engine: Engine, max_waiting: int = 256) -> None:
        self.engine = engine
        self.max_waiting = max_waiting
        self.last_error: str | None = None
        self._commands: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._streams: dict[int, Stream] = {}
        self._thread = threading.Thread(target=self._run, name="plow-engine", daemon=True)
        self._thread.start()

    def submit(self, request: Request) -> Stream:
        """Call from a running event loop. Raises RequestError (Overloaded, ContextTooLong, ...)."""
        request.check(self.engine.limits)
        if not self._thread.is_alive():
            raise RequestError("the engine has stopped", self.last_error or "", "restart the server")
        waiting = self.engine.waiting + self._commands.qsize()
        if waiting >= self.max_waiting:
            raise Overloaded(f"{waiting} requests are waiting", "queue", "try again later")
        stream = Stream(self)
        self._commands.put(lambda: self._add(stream, request))
        return stream

    def cancel(self, stream: Stream) -> None:
        self._commands.put(lambda: self._abort(stream))

    def close(self) -> None:
        """Abort everything and end the thread."""
        self._commands.put(None)
        self._thread.join()

    def _add(self, stream: Stream, request: Request) -> None:
        stream.id = self.engine.add(request)
        self._streams[stream.id] = stream

    def _abort(self, stream: Stream) -> None:
        event = self.engine.abort(stream.id)
        if event:
            self._deliver([event])

    def _run(self) -> None:
        try:
            while self._obey():
                try:
                    self._deliver(self.engine.step())
                except PlowError as error:
                    self._fail(error)
        except Exception as error:
            self._fail(error)
            raise
        finally:
            self._deliver(self.engine.abort_all())

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
            self._streams[request].deliver(items)
        for event in events:
            if event.finish:
                self._streams.pop(event.request, None)

    def _fail(self, error: Exception) -> None:
        """Every stream learns what happened; typed errors leave the engine running."""
        self.last_error = str(error)
        for stream in self._streams.values():
            stream.deliver([error])
        self._streams.clear()
        self.engine.abort_all()

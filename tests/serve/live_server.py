"""A uvicorn on 127.0.0.1 over a fake backend, as a context manager."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import uvicorn
from fake_backend import FakeBackend

from plow.runtime.async_engine import AsyncEngine
from plow.runtime.engine import Engine
from plow.runtime.text import Tokenizer
from plow.serve.app import create_app
from plow.serve.service import Service


@dataclass
class Running:
    url: str
    service: Service
    backend: FakeBackend

    def wait_idle(self, timeout_s: float = 10.0) -> None:
        """Until no request runs or waits and every block is free."""
        engine, end = self.service.engine.engine, time.monotonic() + timeout_s
        while engine.has_work or engine.blocks.used_blocks:
            assert time.monotonic() < end, engine.snapshot()
            time.sleep(0.005)


@contextmanager
def running(tokenizer_dir: Path, backend: FakeBackend, max_waiting: int = 64) -> Iterator[Running]:
    engine = AsyncEngine(Engine(backend), max_waiting)
    service = Service(backend.bundle, engine, Tokenizer(tokenizer_dir), "tiny", [2])
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(create_app(service), log_level="warning", timeout_graceful_shutdown=2))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        yield Running(f"http://127.0.0.1:{listener.getsockname()[1]}", service, backend)
    finally:
        server.should_exit = True
        thread.join(10)
        assert not thread.is_alive() and not engine.alive

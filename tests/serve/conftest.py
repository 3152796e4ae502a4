"""A real uvicorn on 127.0.0.1 over the tiny tokenizer and a fake backend."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import uvicorn
from fake_backend import FakeBackend

from plow.oracle import tiny
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


@pytest.fixture(scope="session")
def tokenizer_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer")
    tiny.tokenizer().save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(json.dumps(
        {"bos_token": "<bos>", "eos_token": "<|im_end|>", "chat_template": tiny.CHAT_TEMPLATE}))
    return path


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


@pytest.fixture(scope="module")
def server(tokenizer_dir: Path) -> Iterator[Running]:
    with running(tokenizer_dir, FakeBackend(max_ctx=256, rows=(1, 2, 4, 8, 64))) as r:
        yield r


@pytest.fixture
def start(tokenizer_dir: Path) -> Iterator[Callable[..., Running]]:
    """Servers with a backend of their own."""
    open_servers = []

    def new(max_waiting: int = 64, **backend: object) -> Running:
        context = running(tokenizer_dir, FakeBackend(**{"max_ctx": 256, "rows": (1, 2, 4, 8, 64), **backend}), max_waiting)
        open_servers.append(context)
        return context.__enter__()

    yield new
    for context in open_servers:
        context.__exit__(None, None, None)

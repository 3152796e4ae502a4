"""Servers over the tiny tokenizer and a fake backend."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fake_backend import FakeBackend
from live_server import Running, running

from plow.oracle import tiny


@pytest.fixture(scope="session")
def tokenizer_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer")
    tiny.tokenizer().save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(
        json.dumps({"bos_token": "<bos>", "eos_token": "<|im_end|>", "chat_template": tiny.CHAT_TEMPLATE})
    )
    return path


@pytest.fixture(scope="module")
def server(tokenizer_dir: Path) -> Iterator[Running]:
    with running(tokenizer_dir, FakeBackend(max_ctx=256, rows=(1, 2, 4, 8, 64))) as r:
        yield r


@pytest.fixture
def start(tokenizer_dir: Path) -> Iterator[Callable[..., Running]]:
    """Servers with a backend of their own."""
    open_servers = []

    def new(max_waiting: int = 64, **backend: object) -> Running:
        context = running(
            tokenizer_dir, FakeBackend(**{"max_ctx": 256, "rows": (1, 2, 4, 8, 64), **backend}), max_waiting
        )
        open_servers.append(context)
        return context.__enter__()

    yield new
    for context in open_servers:
        context.__exit__(None, None, None)

"""Running the application on a socket."""

from __future__ import annotations

import socket
from collections.abc import Callable

import uvicorn

from plow.errors import RequestError
from plow.runtime.async_engine import AsyncEngine
from plow.runtime.llm import LLM, default_sampling
from plow.serve.app import create_app
from plow.serve.service import Service

SHUTDOWN_S = 5
"""Seconds that open requests may take after a signal to stop."""


def service_of(llm: LLM, model_name: str | None = None, max_waiting: int = 256) -> Service:
    """A Service with its engine thread running. Raises BundleError when the bundle has no tokenizer."""
    tokenizer = llm.require_tokenizer()
    name = model_name or llm.bundle.manifest.get("checkpoint", {}).get("name") or llm.bundle.path.name
    return Service(llm.bundle, AsyncEngine(llm.engine, max_waiting), tokenizer, name, llm.bundle.eos_token_ids,
                   default_sampling(llm.bundle.path))


def run_server(llm: LLM, host: str, port: int, model_name: str | None, max_waiting: int,
               on_ready: Callable[[str, str], None]) -> None:
    """Serve until a signal. on_ready: called with the base URL and the model's name. Raises RequestError when the
    address cannot be used."""
    listener = _listen(host, port)
    service = service_of(llm, model_name, max_waiting)
    config = uvicorn.Config(create_app(service), log_level="warning", timeout_graceful_shutdown=SHUTDOWN_S)
    on_ready(f"http://{host}:{listener.getsockname()[1]}", service.model)
    uvicorn.Server(config).run(sockets=[listener])
    llm.close()


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as e:
        listener.close()
        fix = "choose another --port or --host"
        raise RequestError(f"cannot listen: {e.strerror}", f"{host}:{port}", fix) from None
    return listener

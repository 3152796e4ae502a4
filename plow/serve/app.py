"""Routes: /v1/chat/completions, /v1/completions, /v1/models, /health."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, StreamingResponse
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from plow import __version__
from plow.errors import PlowError
from plow.serve.protocol import ChatBody, CompletionBody, GenerateBody, UnknownModel, error_body, http_error
from plow.serve.replies import ChatReply, CompletionReply, Reply
from plow.serve.service import Choice, Generation, Service, collect

CLIENT_CLOSED = 499
"""Status that nobody reads: the client has gone (nginx's number for it)."""


def create_app(service: Service) -> FastAPI:
    """The ASGI application; it closes the engine when the server stops."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(service.engine.close)

    app = FastAPI(title="plow", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None)
    _add_error_handlers(app)
    created = int(time.time())
    card = {"id": service.model, "object": "model", "created": created, "owned_by": "plow",
            "max_model_len": service.bundle.limits.max_ctx}

    @app.get("/health")
    def health() -> JSONResponse:
        report = service.health()
        return JSONResponse(report, 200 if report["status"] == "ok" else 503)

    @app.get("/v1/models")
    def models() -> dict[str, Any]:
        return {"object": "list", "data": [card]}

    @app.get("/v1/models/{model:path}")
    def model(model: str) -> dict[str, Any]:
        _check_model(service, model)
        return card

    @app.post("/v1/chat/completions", response_model=None)
    async def chat(body: ChatBody, request: Request) -> Response:
        _check_model(service, body.model)
        body.check()
        # Off the loop: a long text takes milliseconds, in which other streams would stand still.
        prompt = await asyncio.to_thread(service.encode_chat, body.messages, body.chat_template_kwargs or {})
        generation = service.start(body, [prompt], body.limit, body.num_logprobs)
        return await _answer(body, request, generation, ChatReply(service, body.num_logprobs is not None))

    @app.post("/v1/completions", response_model=None)
    async def completions(body: CompletionBody, request: Request) -> Response:
        _check_model(service, body.model)
        body.check()
        prompts = await asyncio.to_thread(service.encode, body.prompts)
        generation = service.start(body, prompts, body.limit, body.num_logprobs)
        return await _answer(body, request, generation, CompletionReply(service, body.num_logprobs is not None))

    return app


def _check_model(service: Service, name: str | None) -> None:
    if name not in (None, service.model):
        raise UnknownModel(f"the model {name!r} does not exist", "model", f"served here: {service.model}")


def _add_error_handlers(app: FastAPI) -> None:
    @app.exception_handler(PlowError)
    async def typed(_: Request, error: PlowError) -> JSONResponse:
        status, body = http_error(error)
        return JSONResponse(body, status)

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        place = ".".join(str(p) for p in first["loc"][1:])
        body = error_body(f"{place}: {first['msg']}", "invalid_request_error", place, "invalid_value")
        return JSONResponse(body, 400)

    @app.exception_handler(HTTPException)
    async def http(_: Request, error: HTTPException) -> JSONResponse:
        return JSONResponse(error_body(str(error.detail), "invalid_request_error"), error.status_code)


async def _answer(body: GenerateBody, request: Request, generation: Generation, reply: Reply) -> Response:
    if body.stream:
        return EventStream(generation, reply, body.include_usage)
    choices = await _unless_disconnected(request, collect(generation))
    if choices is None:
        return Response(status_code=CLIENT_CLOSED)
    return JSONResponse(reply.whole(choices, generation))


async def _unless_disconnected(request: Request, work: Awaitable[list[Choice]]) -> list[Choice] | None:
    """The result of `work`; None, with the work cancelled, when the client goes away first."""
    task = asyncio.ensure_future(work)
    watcher = asyncio.create_task(_disconnected(request))
    try:
        await asyncio.wait({task, watcher}, return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        for t in (task, watcher):
            t.cancel()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


class EventStream(StreamingResponse):
    """Server-sent events of a generation. However it ends, the generation is cancelled."""

    def __init__(self, generation: Generation, reply: Reply, include_usage: bool) -> None:
        self._generation = generation
        super().__init__(_events(generation, reply, include_usage), media_type="text/event-stream",
                         headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._generation.cancel()


async def _events(generation: Generation, reply: Reply, include_usage: bool) -> AsyncIterator[str]:
    try:
        for chunk in reply.opening(len(generation.requests)):
            yield _sse(chunk)
        async for delta in generation.deltas():
            if piece := reply.chunk(delta):
                yield _sse(piece)
        if include_usage:
            yield _sse(reply.usage_chunk(generation))
    except PlowError as error:
        yield _sse(http_error(error)[1])
    yield "data: [DONE]\n\n"


def _sse(data: dict[str, Any]) -> str:
    return f"data: {json.dumps(data, ensure_ascii=False)}\n\n"



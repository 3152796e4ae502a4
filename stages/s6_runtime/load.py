"""A small load generator: concurrent streaming completions against a running server, timed at the client."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field
from typing import Any

import httpx


@dataclass
class Reply:
    """One streamed completion. arrivals: seconds since the request at which each piece of text came."""

    text: str = ""
    finish: str | None = None
    tokens: int = 0
    arrivals: list[float] = field(default_factory=list)

    @property
    def ttft(self) -> float:
        return self.arrivals[0]

    @property
    def tpot(self) -> float:
        """Seconds a token after the first."""
        return (self.arrivals[-1] - self.arrivals[0]) / max(1, self.tokens - 1)


async def stream(client: httpx.AsyncClient, body: dict[str, Any], stop_after: int | None = None) -> Reply:
    """POST /v1/completions with stream; stop_after: disconnect after so many pieces."""
    reply = Reply()
    start = time.perf_counter()
    request = {**body, "stream": True, "stream_options": {"include_usage": True}}
    async with client.stream("POST", "/v1/completions", json=request) as response:
        response.raise_for_status()
        async for line in response.aiter_lines():
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            event = json.loads(line[6:])
            if event.get("usage"):
                reply.tokens = event["usage"]["completion_tokens"]
            for choice in event["choices"]:
                reply.finish = choice["finish_reason"] or reply.finish
                if choice["text"]:
                    reply.text += choice["text"]
                    reply.arrivals.append(time.perf_counter() - start)
            if stop_after is not None and len(reply.arrivals) >= stop_after:
                break
    return reply


async def whole(client: httpx.AsyncClient, body: dict[str, Any]) -> Reply:
    """POST /v1/completions without stream."""
    response = await client.post("/v1/completions", json=body)
    response.raise_for_status()
    answer = response.json()
    choice = answer["choices"][0]
    return Reply(choice["text"], choice["finish_reason"], answer["usage"]["completion_tokens"])


async def together(base: str, bodies: list[dict[str, Any]], concurrency: int) -> list[Reply]:
    """Stream all bodies, `concurrency` at a time; results in order."""
    gate = asyncio.Semaphore(concurrency)
    async with httpx.AsyncClient(base_url=base, timeout=300) as client:

        async def one(body: dict[str, Any]) -> Reply:
            async with gate:
                return await stream(client, body)

        return list(await asyncio.gather(*(one(b) for b in bodies)))


async def disconnect(base: str, body: dict[str, Any], times: int) -> None:
    """Open streams and leave each after two pieces of text."""
    async with httpx.AsyncClient(base_url=base, timeout=300) as client:
        for _ in range(times):
            await stream(client, body, stop_after=2)


async def alone(base: str, body: dict[str, Any]) -> tuple[Reply, Reply]:
    """The same body whole and streamed, one after the other."""
    async with httpx.AsyncClient(base_url=base, timeout=300) as client:
        return await whole(client, body), await stream(client, body)

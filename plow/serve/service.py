"""Service: one bundle with its tokenizer and engine. Generation: the texts of one HTTP request."""

from __future__ import annotations

import os
import secrets
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from plow.errors import RequestError
from plow.runtime.async_engine import AsyncEngine, Mailbox, Ticket
from plow.runtime.bundle import Bundle
from plow.runtime.chat import Message
from plow.runtime.request import Event, Finish, Request, TokenLogprob
from plow.runtime.text import TextStream, Tokenizer
from plow.serve.protocol import GenerateBody

STATM = Path("/proc/self/statm")


@dataclass(frozen=True)
class Delta:
    """A piece of choice `index`. text may be empty: half a character, or held back for a stop string."""

    index: int
    text: str
    tokens: int
    """Tokens that this piece accounts for: 0 or 1."""
    finish: Finish | None = None
    logprob: TokenLogprob | None = None


class Service:
    """Everything that the routes need. model: the name clients use; defaults: the model's own sampling parameters."""

    def __init__(self, bundle: Bundle, engine: AsyncEngine, tokenizer: Tokenizer, model: str,
                 eos_ids: Sequence[int], defaults: dict[str, Any] | None = None) -> None:
        self.bundle, self.engine, self.tokenizer, self.model = bundle, engine, tokenizer, model
        self.eos_ids = frozenset(eos_ids)
        self.defaults = defaults or {}

    def encode(self, prompts: Sequence[str | list[int]]) -> list[list[int]]:
        """Token ids of texts; ids pass."""
        return [self.tokenizer.encode(p) if isinstance(p, str) else p for p in prompts]

    def encode_chat(self, messages: Sequence[Message], variables: dict[str, Any]) -> list[int]:
        """Token ids of the rendered template, which writes its own BOS. variables: extra ones for the template."""
        if self.tokenizer.chat is None:
            raise RequestError("this model has no chat template", "messages", "use /v1/completions")
        reserved = {"messages", "add_generation_prompt", *self.tokenizer.special_tokens} & set(variables)
        if reserved:
            raise RequestError(f"{sorted(reserved)[0]} is set by the server", "chat_template_kwargs", "leave it out")
        return self.tokenizer.encode(self.tokenizer.chat.render(messages, **variables), add_special_tokens=False)

    def start(self, body: GenerateBody, prompts: Sequence[list[int]], limit: int | None,
              logprobs: int | None) -> Generation:
        """Submit every choice of a request: prompts times n. Raises RequestError before anything runs."""
        sampling = body.sampling(self.defaults, secrets.randbits(63))
        stop_ids = frozenset() if body.ignore_eos else self.eos_ids
        requests = [Request(p, sampling.fork(j), limit, stop_ids, logprobs)
                    for p in prompts for j in range(body.choices)]
        return Generation(self, requests, body.stops)

    def health(self) -> dict[str, Any]:
        b = self.bundle
        return {"status": "ok" if self.engine.alive else "failed", "model": self.model, "target": b.target,
                "certified": b.certified, "uncertified_reason": b.uncertified_reason or None, "digests": b.digests,
                "max_ctx": b.limits.max_ctx,
                "load": self.engine.engine.snapshot(),
                "memory": {"arena_bytes": self.engine.engine.backend.arena.nbytes, "resident_bytes": resident_bytes()},
                "last_error": self.engine.last_error}


def resident_bytes() -> int | None:
    """Memory of this process that is in RAM; None where the system does not tell."""
    try:
        return int(STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return None


class Generation:
    """The choices of one HTTP request while they run."""

    def __init__(self, service: Service, requests: list[Request], stops: Sequence[str]) -> None:
        for r in requests:
            r.check(service.bundle.limits)
        self.requests = requests
        self.completion_tokens = 0
        self._texts = [service.tokenizer.stream(r.prompt, stops) for r in requests]
        self._mailbox = Mailbox()
        self._tickets: list[Ticket] = []
        try:
            for i, r in enumerate(requests):
                self._tickets.append(service.engine.submit(r, self._mailbox, i))
        except RequestError:
            self.cancel()
            raise

    @property
    def prompt_tokens(self) -> int:
        """Of every prompt once, however many choices it has."""
        return sum(len(p) for p in {id(r.prompt): r.prompt for r in self.requests}.values())

    def cancel(self) -> None:
        """Abort what still runs; blocks are free before the next step. Harmless at the end."""
        for ticket in self._tickets:
            ticket.cancel()

    async def deltas(self) -> AsyncIterator[Delta]:
        """Pieces of all choices as they come; every choice ends with a `finish`. Raises the engine's error."""
        open_choices = set(range(len(self.requests)))
        try:
            while open_choices:
                index, event = await self._mailbox.get()
                if index not in open_choices:  # its text has ended with a stop string
                    continue
                delta = _delta(index, event, self.requests[index], self._texts[index])
                self.completion_tokens += delta.tokens
                if delta.finish:
                    open_choices.remove(index)
                    self._tickets[index].cancel("stop")
                yield delta
        finally:
            self.cancel()


def _delta(index: int, event: Event, request: Request, text: TextStream) -> Delta:
    """A stop token has no text of its own; a stop string ends the text whatever the engine says."""
    piece = ""
    if event.token is not None and event.token not in request.stop_ids:
        piece = text.push(event.token)
    if event.finish:
        piece += text.finish()
    finish = "stop" if text.stopped else event.finish
    return Delta(index, piece, int(event.token is not None), finish, event.logprob)


@dataclass
class Choice:
    """A whole answer."""

    text: str = ""
    finish: Finish | None = None
    logprobs: list[TokenLogprob] = field(default_factory=list)


async def collect(generation: Generation) -> list[Choice]:
    """All choices, complete."""
    choices = [Choice() for _ in generation.requests]
    async for delta in generation.deltas():
        choice = choices[delta.index]
        choice.text += delta.text
        choice.finish = delta.finish
        if delta.logprob:
            choice.logprobs.append(delta.logprob)
    return choices

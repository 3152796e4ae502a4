"""LLM: a bundle with its backend, engine and tokenizer, for use inside a process."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from plow.errors import PlowError, RequestError
from plow.runtime import bundle as bundles
from plow.runtime.backends import open_backend
from plow.runtime.chat import Message
from plow.runtime.engine import Engine
from plow.runtime.request import Event, Finish, Request, Timing
from plow.runtime.sampler import SamplingParams
from plow.runtime.text import TextStream, Tokenizer

Prompt = str | Sequence[int]
OnText = Callable[[int, str], None]
"""Called with the prompt's index and a new piece of its text."""


@dataclass
class Completion:
    """text excludes stop tokens and strings; token_ids holds every generated token."""

    prompt_ids: list[int]
    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    finish: Finish | None = None
    timing: Timing | None = None


class LLM:
    """load_s: seconds from the first byte to ready."""

    def __init__(self, path: Path | str, backend: str = "", allow_uncertified: bool = False,
                 steps_per_call: int = 0, text: bool = False) -> None:
        """backend: empty = what the bundle was built for; steps_per_call: 0 = the backend's own; text: refuse a shape
        bundle before its device is touched.

        Raises BundleError, or RequestError for an unknown backend or a bundle without text."""
        start = time.perf_counter()
        self.bundle = bundles.load(path, allow_uncertified)
        if text:
            self.require_text()
        has_text = (self.bundle.path / "tokenizer.json").is_file()
        self.tokenizer = Tokenizer(self.bundle.path) if has_text else None
        self.backend = open_backend(self.bundle, backend)
        self.engine = Engine(self.backend, steps_per_call=steps_per_call)
        self.load_s = time.perf_counter() - start

    def close(self) -> None:
        self.backend.close()

    def require_text(self) -> None:
        """Raises RequestError for a shape bundle: what random weights say is no text."""
        if self.bundle.synthetic:
            raise RequestError("a shape bundle has random weights and no text", str(self.bundle.path),
                               "measure it with plowrt bench, or build one from a checkpoint with plowc --hf-dir")

    def require_tokenizer(self) -> Tokenizer:
        """Raises RequestError for a shape bundle, BundleError when another one has none."""
        self.require_text()
        return self.tokenizer or Tokenizer(self.bundle.path)

    def encode(self, prompt: Prompt) -> list[int]:
        return self.require_tokenizer().encode(prompt) if isinstance(prompt, str) else list(prompt)

    def encode_chat(self, messages: Sequence[Message]) -> list[int]:
        """Token ids of the rendered chat template, which writes its own BOS. Raises RequestError without a template."""
        tokenizer = self.require_tokenizer()
        if tokenizer.chat is None:
            raise RequestError("this model has no chat template", str(self.bundle.path), "give a plain prompt")
        return tokenizer.encode(tokenizer.chat.render(messages), add_special_tokens=False)

    def generate(self, prompts: Sequence[Prompt], sampling: SamplingParams | None = None, max_tokens: int | None = None,
                 stop: Sequence[str] = (), ignore_eos: bool = False, on_text: OnText | None = None) -> list[Completion]:
        """Answers in the order of the prompts, computed together. Prompt i samples with `sampling.fork(i)`."""
        sampling = sampling or SamplingParams()
        stop_ids = frozenset() if ignore_eos else frozenset(self.bundle.eos_token_ids)
        done = [Completion(self.encode(p)) for p in prompts]
        requests = [Request(c.prompt_ids, sampling.fork(i), max_tokens, stop_ids) for i, c in enumerate(done)]
        for r in requests:
            r.check(self.engine.limits)
        index = {self.engine.add(r): i for i, r in enumerate(requests)}
        texts = [self.tokenizer.stream(c.prompt_ids, stop) if self.tokenizer else None for c in done]
        while self.engine.has_work:
            for event in self._events():
                i = index[event.request]
                piece = _take(done[i], event, texts[i], stop_ids)
                if done[i].finish and not event.finish:  # a stop string
                    end = self.engine.abort(event.request, "stop")
                    done[i].timing = end.timing if end else done[i].timing
                if on_text and piece:
                    on_text(i, piece)
        return done

    def _events(self) -> list[Event]:
        """Of one step; a failure ends all requests."""
        try:
            return self.engine.step()
        except PlowError:
            self.engine.abort_all()
            raise


def _take(c: Completion, event: Event, text: TextStream | None, stop_ids: frozenset[int]) -> str:
    """Book an event; returns the new text."""
    c.timing = event.timing or c.timing
    if c.finish:  # by a stop string, in an earlier token of the same call
        return ""
    if event.token is not None:
        c.token_ids.append(event.token)
    piece = ""
    if text:
        if event.token is not None and event.token not in stop_ids:
            piece = text.push(event.token)
        if event.finish:
            piece += text.finish()
        c.text += piece
    c.finish = "stop" if text and text.stopped else event.finish
    return piece


def default_sampling(path: Path) -> dict[str, Any]:
    """The model's own sampling parameters: those of generation_config.json that SamplingParams knows."""
    file = path / "generation_config.json"
    values = json.loads(file.read_text()) if file.is_file() else {}
    return {k: values[k] for k in ("temperature", "top_k", "top_p", "min_p") if values.get(k) is not None}

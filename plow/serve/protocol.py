"""Request bodies of the OpenAI API, as far as they are served, and its error body."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict

from plow.errors import PlowError, RequestError
from plow.runtime.request import ContextTooLong, EngineStopped, Overloaded
from plow.runtime.sampler import SamplingParams

MAX_CHOICES = 64
"""Choices of one HTTP request: prompts times n."""
MAX_STOPS = 16
SAMPLING = ("temperature", "top_k", "top_p", "min_p")
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "frequency_penalty": (0,), "presence_penalty": (0,), "repetition_penalty": (1,), "logit_bias": ({},),
    "response_format": ({"type": "text"},), "tools": ([],), "functions": ([],), "tool_choice": ("none", "auto"),
    "modalities": (["text"],), "suffix": ("",), "echo": (False,), "prompt_logprobs": (0,), "min_tokens": (0,),
}
"""Parameters that would change the answer and are not implemented: any value but these (and null) is refused."""


class UnknownModel(RequestError):
    """The request names a model that is not served here."""


class StreamOptions(BaseModel):
    include_usage: bool = False


class GenerateBody(BaseModel):
    """What chat and plain completions share. Unknown parameters that cannot change the answer (user, metadata) pass."""

    model_config = ConfigDict(extra="allow")

    model: str | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    n: int | None = None
    stop: str | list[str] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    ignore_eos: bool = False

    def check(self) -> None:
        """Raises RequestError for what is not served."""
        for name, value in (self.model_extra or {}).items():
            if name in NEUTRAL and value is not None and value not in NEUTRAL[name]:
                raise RequestError(f"{name} is not supported", name, "leave it out")
        if not 1 <= self.choices <= MAX_CHOICES:
            raise RequestError(f"n is {self.n}", "n", f"use 1..{MAX_CHOICES}")
        if self.stream_options and not self.stream:
            raise RequestError("stream_options without stream", "stream_options", "set stream to true or leave it out")
        stops = self.stops
        if len(stops) > MAX_STOPS or "" in stops:
            raise RequestError(f"stop has {len(stops)} strings or an empty one", "stop", f"send at most {MAX_STOPS}")

    @property
    def choices(self) -> int:
        return 1 if self.n is None else self.n

    @property
    def stops(self) -> list[str]:
        return [self.stop] if isinstance(self.stop, str) else self.stop or []

    @property
    def include_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    def sampling(self, defaults: dict[str, Any], seed: int) -> SamplingParams:
        """defaults: the model's own; seed: used when the request names none. Raises RequestError."""
        values = {k: getattr(self, k) if getattr(self, k) is not None else defaults[k]
                  for k in SAMPLING if getattr(self, k) is not None or k in defaults}
        values.setdefault("temperature", 1.0)
        if values.get("top_k") == -1:  # another spelling of "off"
            values["top_k"] = 0
        return SamplingParams(**values, seed=self.seed if self.seed is not None else seed)


class ChatBody(GenerateBody):
    messages: list[dict[str, Any]]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    def check(self) -> None:
        super().check()
        if self.top_logprobs and not self.logprobs:
            raise RequestError("top_logprobs without logprobs", "top_logprobs", "set logprobs to true")
        for i, message in enumerate(self.messages):
            if not isinstance(message.get("role"), str):
                raise RequestError(f"message {i} has no role", "messages", 'give every message a "role"')

    @property
    def limit(self) -> int | None:
        return self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens

    @property
    def num_logprobs(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None


class CompletionBody(GenerateBody):
    prompt: str | list[int] | list[str] | list[list[int]]
    logprobs: int | None = None
    best_of: int | None = None

    def check(self) -> None:
        super().check()
        if self.best_of not in (None, 1, self.choices):
            raise RequestError(f"best_of is {self.best_of}", "best_of", "leave it out")
        if not 1 <= len(self.prompts) * self.choices <= MAX_CHOICES:
            raise RequestError(f"{len(self.prompts)} prompts with n {self.choices}", "prompt",
                               f"ask for 1..{MAX_CHOICES} texts")

    @property
    def prompts(self) -> list[str | list[int]]:
        if isinstance(self.prompt, str):
            return [self.prompt]
        if self.prompt and isinstance(self.prompt[0], int):
            return [self.prompt]  # type: ignore[list-item]
        return list(self.prompt)  # type: ignore[arg-type]

    @property
    def limit(self) -> int:
        """OpenAI's default for plain completions is 16 tokens."""
        return 16 if self.max_tokens is None else self.max_tokens

    @property
    def num_logprobs(self) -> int | None:
        return self.logprobs


def error_body(message: str, kind: str, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def http_error(error: Exception) -> tuple[int, dict[str, Any]]:
    """Status and body of an error."""
    if isinstance(error, UnknownModel):
        return 404, error_body(error.line(), "invalid_request_error", "model", "model_not_found")
    if isinstance(error, ContextTooLong):
        return 400, error_body(error.line(), "invalid_request_error", error.where, "context_length_exceeded")
    if isinstance(error, Overloaded | EngineStopped):
        code = "overloaded" if isinstance(error, Overloaded) else "engine_stopped"
        return 503, error_body(error.line(), "server_error", None, code)
    if isinstance(error, RequestError):
        return 400, error_body(error.line(), "invalid_request_error", error.where or None, "invalid_value")
    if isinstance(error, PlowError):
        return 500, error_body(error.line(), "server_error", None, error.kind)
    return 500, error_body(f"internal error: {type(error).__name__}", "server_error")



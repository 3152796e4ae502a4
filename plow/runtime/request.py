"""Requests and what comes back: one Event a token, the last one with a finish reason."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from plow.errors import RequestError
from plow.runtime.sampler import SamplingParams
from plow.runtime.step import Limits

Finish = Literal["stop", "length", "abort"]
MAX_LOGPROBS = 20


class ContextTooLong(RequestError):
    """Prompt and answer do not fit the context that the bundle was compiled for."""


class Overloaded(RequestError):
    """The waiting queue is full."""


class EngineStopped(RequestError):
    """The engine has ended, on purpose or by a bug."""


@dataclass(frozen=True)
class Request:
    """prompt: token ids; max_tokens: None = as many as the context holds; stop_ids: tokens that end the text;
    logprobs: None = off, else how many alternatives to report beside the chosen token."""

    prompt: Sequence[int]
    sampling: SamplingParams = field(default_factory=SamplingParams)
    max_tokens: int | None = None
    stop_ids: frozenset[int] = frozenset()
    logprobs: int | None = None

    def check(self, limits: Limits) -> int:
        """Tokens that may be generated. Raises ContextTooLong or another RequestError."""
        n = len(self.prompt)
        if n == 0:
            raise RequestError("the prompt has no tokens", "prompt", "send at least one token")
        bad = [t for t in self.prompt if not 0 <= t < limits.vocab_size]
        if bad:
            raise RequestError(f"token id {bad[0]} is outside the vocabulary of {limits.vocab_size}", "prompt")
        if self.logprobs is not None and not 0 <= self.logprobs <= MAX_LOGPROBS:
            raise RequestError(f"logprobs is {self.logprobs}", "logprobs", f"use 0..{MAX_LOGPROBS}")
        if self.max_tokens is not None and self.max_tokens < 1:
            raise RequestError(f"max_tokens is {self.max_tokens}", "max_tokens", "ask for at least one token")
        wanted = self.max_tokens if self.max_tokens is not None else max(limits.max_ctx - n, 1)
        if n + wanted > limits.max_ctx:
            raise ContextTooLong(f"{n} prompt tokens and {wanted} new tokens exceed the context of {limits.max_ctx}",
                                 "max_tokens", "shorten the prompt or lower max_tokens")
        if limits.blocks_for(n + wanted) > limits.num_kv_blocks:
            raise ContextTooLong(f"{n + wanted} positions exceed the {limits.num_kv_blocks} KV blocks of the bundle",
                                 "max_tokens", "lower max_tokens")
        return wanted


@dataclass(frozen=True)
class TokenLogprob:
    """Natural-log probabilities at temperature 1, before any cut: of the token, and of the likeliest ones."""

    token: int
    logprob: float
    top: list[tuple[int, float]]


@dataclass
class Timing:
    """Seconds of the monotonic clock."""

    arrived: float
    admitted: float = 0.0
    first_token: float = 0.0
    last_token: float = 0.0
    tokens: int = 0

    @property
    def ttft(self) -> float:
        """Time to first token, waiting included."""
        return self.first_token - self.arrived

    @property
    def tpot(self) -> float:
        """Time per output token after the first."""
        return (self.last_token - self.first_token) / (self.tokens - 1) if self.tokens > 1 else 0.0


@dataclass(slots=True)  # not frozen: one is made for every token, and frozen ones take three times as long
class Event:
    """A token of a request, or its end without one (abort)."""

    request: int
    token: int | None
    finish: Finish | None = None
    logprob: TokenLogprob | None = None
    timing: Timing | None = None
    """Given with `finish`."""

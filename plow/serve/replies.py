"""Reply bodies: whole answers and stream chunks, for chat and for plain completions."""

from __future__ import annotations

import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from plow.runtime.request import TokenLogprob
from plow.serve.service import Choice, Delta, Generation, Service

Body = dict[str, Any]


def usage(generation: Generation) -> Body:
    prompt, completion = generation.prompt_tokens, generation.completion_tokens
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


class Reply(ABC):
    """One HTTP reply. logprobs: whether the request asked for them."""

    prefix: str
    whole_object: str
    chunk_object: str

    def __init__(self, service: Service, logprobs: bool) -> None:
        self.tokenizer, self.logprobs = service.tokenizer, logprobs
        self._head: Body = {"id": f"{self.prefix}-{uuid.uuid4().hex}", "created": int(time.time()),
                            "model": service.model, "system_fingerprint": service.bundle.packet_digest[:16]}

    def whole(self, choices: Sequence[Choice], generation: Generation) -> Body:
        return {**self._head, "object": self.whole_object, "usage": usage(generation),
                "choices": [self._whole_choice(i, c) for i, c in enumerate(choices)]}

    def opening(self, choices: int) -> list[Body]:
        """Chunks before the first token."""
        return []

    def chunk(self, delta: Delta) -> Body | None:
        """None when there is nothing to tell yet."""
        if not delta.text and not delta.finish and not delta.logprob:
            return None
        return self._chunk([self._chunk_choice(delta)])

    def usage_chunk(self, generation: Generation) -> Body:
        return {**self._chunk([]), "usage": usage(generation)}

    def _chunk(self, choices: list[Body]) -> Body:
        return {**self._head, "object": self.chunk_object, "choices": choices}

    @abstractmethod
    def _whole_choice(self, index: int, choice: Choice) -> Body: ...

    @abstractmethod
    def _chunk_choice(self, delta: Delta) -> Body: ...


class ChatReply(Reply):
    prefix, whole_object, chunk_object = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def opening(self, choices: int) -> list[Body]:
        role = {"role": "assistant", "content": ""}
        return [self._chunk([{"index": i, "delta": role, "logprobs": None, "finish_reason": None}])
                for i in range(choices)]

    def _whole_choice(self, index: int, choice: Choice) -> Body:
        return {"index": index, "message": {"role": "assistant", "content": choice.text, "refusal": None},
                "logprobs": self._logprobs(choice.logprobs), "finish_reason": choice.finish}

    def _chunk_choice(self, delta: Delta) -> Body:
        content = {"content": delta.text} if delta.text or delta.logprob else {}
        return {"index": delta.index, "delta": content, "finish_reason": delta.finish,
                "logprobs": self._logprobs([delta.logprob] if delta.logprob else [])}

    def _logprobs(self, entries: Sequence[TokenLogprob]) -> Body | None:
        if not self.logprobs:
            return None
        content = [{**self._token(e.token, e.logprob), "top_logprobs": [self._token(t, p) for t, p in e.top]}
                   for e in entries]
        return {"refusal": None, "content": content}

    def _token(self, token: int, logprob: float) -> Body:
        return {"token": self.tokenizer.token_text(token), "logprob": logprob,
                "bytes": list(self.tokenizer.token_bytes(token))}


class CompletionReply(Reply):
    prefix, whole_object, chunk_object = "cmpl", "text_completion", "text_completion"

    def __init__(self, service: Service, logprobs: bool) -> None:
        super().__init__(service, logprobs)
        self._offsets: dict[int, int] = {}
        """Characters of each choice's tokens so far."""

    def _whole_choice(self, index: int, choice: Choice) -> Body:
        return {"index": index, "text": choice.text, "logprobs": self._logprobs(index, choice.logprobs),
                "finish_reason": choice.finish}

    def _chunk_choice(self, delta: Delta) -> Body:
        return {"index": delta.index, "text": delta.text, "finish_reason": delta.finish,
                "logprobs": self._logprobs(delta.index, [delta.logprob] if delta.logprob else [])}

    def _logprobs(self, index: int, entries: Sequence[TokenLogprob]) -> Body | None:
        if not self.logprobs:
            return None
        body: Body = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        for e in entries:
            text = self.tokenizer.token_text(e.token)
            body["tokens"].append(text)
            body["token_logprobs"].append(e.logprob)
            body["top_logprobs"].append({self.tokenizer.token_text(t): p for t, p in e.top})
            body["text_offset"].append(self._offsets.get(index, 0))
            self._offsets[index] = self._offsets.get(index, 0) + len(text)
        return body

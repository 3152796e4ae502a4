"""Chat templates: Jinja in a sandbox, with what Hugging Face templates expect to find."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from functools import cached_property
from typing import Any, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from plow.errors import BundleError, RequestError

Message = dict[str, Any]
"""{"role": str, "content": str | list of parts {"type": "text", "text": str} | None, ...}"""


class GenerationTag(Extension):
    """{% generation %} ... {% endgeneration %} marks the assistant's part for training; here it is transparent."""

    tags = {"generation"}  # noqa: RUF012 - the base class has a plain set

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatTemplate:
    """source: Jinja text; special_tokens: bos_token, eos_token, ... that templates refer to by name.

    Raises BundleError when the template does not parse.
    """

    def __init__(self, source: str, special_tokens: dict[str, str]) -> None:
        env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                            extensions=["jinja2.ext.loopcontrols", GenerationTag])
        env.filters["tojson"] = _tojson
        env.globals |= {"raise_exception": _raise_exception, "strftime_now": lambda f: datetime.now().strftime(f)}
        self.special_tokens = special_tokens
        try:
            self._template = env.from_string(source)
        except TemplateError as e:
            raise BundleError(f"the chat template does not parse: {e}", "tokenizer_config.json") from None

    def render(self, messages: Sequence[Message], add_generation_prompt: bool = True, **variables: Any) -> str:
        """Prompt text. Raises RequestError: unusable message, or the template refuses (raise_exception)."""
        if not messages:
            raise RequestError("there are no messages", "messages", "send at least one")
        checked = [_as_parts(m) if self.wants_parts else _as_text(m) for m in messages]
        return self._render(checked, add_generation_prompt, variables)

    @cached_property
    def wants_parts(self) -> bool:
        """Some templates read only a list of parts; tried with a marker, since nothing else tells."""
        marker = "probe-4f1c"
        try:
            return marker not in self._render([{"role": "user", "content": marker}], True, {})
        except RequestError:
            return False

    def _render(self, messages: list[Message], add_generation_prompt: bool, variables: dict[str, Any]) -> str:
        try:
            return self._template.render(**self.special_tokens, messages=messages,
                                         add_generation_prompt=add_generation_prompt, **variables)
        except (TemplateError, TypeError, ValueError, ArithmeticError, LookupError, AttributeError) as e:
            raise RequestError(f"the chat template refuses these messages: {e}", "messages") from None


def text_of(content: object) -> str:
    """The text of a message's content, parts joined by newlines. Raises RequestError for other kinds of parts."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise RequestError(f"content is {type(content).__name__}", "messages", "send a string or a list of parts")
    texts = []
    for part in content:
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            kind = part.get("type") if isinstance(part, dict) else type(part).__name__
            raise RequestError(f"content part {kind!r} is not supported", "messages",
                               'send parts {"type": "text", "text": ...}')
        texts.append(part["text"])
    return "\n".join(texts)


def _as_text(message: Message) -> Message:
    return {**message, "content": text_of(message.get("content"))}


def _as_parts(message: Message) -> Message:
    return {**message, "content": [{"type": "text", "text": text_of(message.get("content"))}]}


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _tojson(value: object, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None,
            sort_keys: bool = False) -> str:
    """Plain JSON: Jinja's own filter escapes for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

"""Chat templates as published models write them."""

from __future__ import annotations

from datetime import datetime

import pytest

from plow.errors import BundleError, RequestError
from plow.oracle import tiny
from plow.runtime.chat import ChatTemplate

USER = [{"role": "user", "content": "hi"}]
PARTS_ONLY = (
    "{% for m in messages %}{% for c in m['content'] %}{% if c.type == 'text' %}{{ c.text }}{% endif %}"
    "{% endfor %}{% endfor %}"
)


def render(source: str, messages: list | None = None, **kw: object) -> str:
    return ChatTemplate(source, {"bos_token": "<s>", "eos_token": "</s>"}).render(
        USER if messages is None else messages, **kw
    )


def test_the_usual_template() -> None:
    assert render(tiny.CHAT_TEMPLATE) == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert render(tiny.CHAT_TEMPLATE, add_generation_prompt=False) == "<|im_start|>user\nhi<|im_end|>\n"


def test_special_tokens_and_variables_are_visible() -> None:
    assert (
        render("{{ bos_token }}{{ messages[0].content }}{{ eos_token }}{% if think %}T{% endif %}", think=True)
        == "<s>hi</s>T"
    )


def test_raise_exception_becomes_a_request_error_with_its_words() -> None:
    with pytest.raises(RequestError, match="roles must alternate"):
        render("{{ raise_exception('roles must alternate') }}")


def test_strftime_now_and_tojson_do_what_templates_expect() -> None:
    assert render("{{ strftime_now('%Y') }}") == str(datetime.now().year)
    assert (
        render("{{ messages | tojson }}", [{"role": "user", "content": "<é>"}])
        == '[{"role": "user", "content": "<é>"}]'
    )


@pytest.mark.parametrize("source", [tiny.CHAT_TEMPLATE, PARTS_ONLY, "{{ messages[0]['content'] }}"])
def test_content_as_text_and_as_parts_say_the_same(source: str) -> None:
    parts = [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]
    assert render(source) == render(source, parts)
    assert "hi" in render(source)


@pytest.mark.parametrize("content", [[{"type": "image_url", "image_url": {}}], [{"type": "text"}], ["x"], 5, {"a": 1}])
def test_other_content_is_refused(content: object) -> None:
    with pytest.raises(RequestError, match="content"):
        render(tiny.CHAT_TEMPLATE, [{"role": "user", "content": content}])


def test_absent_content_is_empty_text() -> None:
    assert render("[{{ messages[0].content }}]", [{"role": "assistant", "content": None}]) == "[]"


def test_no_messages_is_refused() -> None:
    with pytest.raises(RequestError, match="no messages"):
        render(tiny.CHAT_TEMPLATE, [])


def test_blocks_are_trimmed_loop_controls_and_generation_marks_work() -> None:
    source = (
        "{% for m in messages %}\n  {% if loop.index > 1 %}{% break %}{% endif %}\n"
        "{% generation %}{{ m.content }}{% endgeneration %}\n{% endfor %}"
    )
    assert render(source, USER * 3) == "hi"


@pytest.mark.parametrize(
    "source", ["{{ ''.__class__.__mro__ }}", "{{ messages.append(1) }}", "{% for i in messages.clear() %}{% endfor %}"]
)
def test_a_template_cannot_reach_out_of_the_sandbox_or_change_the_messages(source: str) -> None:
    messages = [{"role": "user", "content": "hi"}]
    try:
        text = render(source, messages)
    except RequestError:
        text = ""
    assert "object" not in text and messages == USER


def test_a_template_that_does_not_parse_is_a_bundle_error() -> None:
    with pytest.raises(BundleError, match="does not parse"):
        render("{% for %}")


def test_errors_inside_a_template_are_request_errors() -> None:
    for source in ("{{ messages[0].content + 1 }}", "{{ 1 / 0 }}", "{{ nothing.there.x }}"):
        with pytest.raises(RequestError, match="refuses these messages"):
            ChatTemplate(source, {})._render(USER, True, {})

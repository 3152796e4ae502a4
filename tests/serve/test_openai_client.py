"""The real OpenAI client against the server."""

from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest
from fake_backend import greedy
from live_server import Running

PROMPT = "hello world"
MESSAGES = [{"role": "user", "content": "what is one"}]


@pytest.fixture
def client(server: Running) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as c:
        yield c


def expected(server: Running, prompt: list[int], n: int) -> str:
    tokens = greedy(prompt, n)
    tokens = tokens[: tokens.index(2)] if 2 in tokens else tokens
    stream = server.service.tokenizer.stream(prompt)
    return "".join(stream.push(t) for t in tokens) + stream.finish()


def test_completion_text_usage_and_finish(client: openai.OpenAI, server: Running) -> None:
    r = client.completions.create(model="tiny", prompt=PROMPT, max_tokens=12, temperature=0)
    ids = server.service.tokenizer.encode(PROMPT)
    assert r.choices[0].text == expected(server, ids, 12) and r.choices[0].finish_reason == "length"
    assert (r.usage.prompt_tokens, r.usage.completion_tokens) == (len(ids), 12)
    assert r.object == "text_completion" and r.model == "tiny"


def test_chat_goes_through_the_template(client: openai.OpenAI, server: Running) -> None:
    r = client.chat.completions.create(model="tiny", messages=MESSAGES, max_completion_tokens=9, temperature=0)
    text = "<|im_start|>user\nwhat is one<|im_end|>\n<|im_start|>assistant\n"
    ids = server.service.tokenizer.encode(text, add_special_tokens=False)
    assert r.choices[0].message.content == expected(server, ids, 9)
    assert r.choices[0].message.role == "assistant" and r.usage.prompt_tokens == len(ids)


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("temperature", [0, 1.2])
@pytest.mark.parametrize("kind", ["chat", "plain"])
def test_streamed_text_equals_whole_text(client: openai.OpenAI, n: int, temperature: float, kind: str) -> None:
    common = {"model": "tiny", "max_tokens": 30, "temperature": temperature, "seed": 5, "n": n}
    if kind == "chat":
        whole = client.chat.completions.create(messages=MESSAGES, **common)
        texts = [c.message.content for c in whole.choices]
        stream = client.chat.completions.create(messages=MESSAGES, stream=True, **common)
    else:
        whole = client.completions.create(prompt=PROMPT, **common)
        texts = [c.text for c in whole.choices]
        stream = client.completions.create(prompt=PROMPT, stream=True, **common)
    got, finish = [""] * n, [None] * n
    for chunk in stream:
        assert chunk.usage is None
        for c in chunk.choices:
            got[c.index] += (c.delta.content or "") if kind == "chat" else c.text
            finish[c.index] = c.finish_reason or finish[c.index]
    assert got == texts and finish == [c.finish_reason for c in whole.choices]
    assert len(set(got)) == (n if temperature else 1), "choices differ only when sampled"


def test_usage_comes_last_and_only_when_asked(client: openai.OpenAI) -> None:
    stream = list(
        client.chat.completions.create(
            model="tiny", messages=MESSAGES, max_tokens=5, stream=True, stream_options={"include_usage": True}
        )
    )
    assert stream[-1].choices == [] and stream[-1].usage.completion_tokens == 5
    assert all(c.usage is None for c in stream[:-1])
    assert stream[0].choices[0].delta.role == "assistant"


def test_several_prompts_and_token_ids(client: openai.OpenAI, server: Running) -> None:
    r = client.completions.create(model="tiny", prompt=[[5, 6, 7], [8, 9]], max_tokens=4, temperature=0, n=2)
    assert [c.index for c in r.choices] == [0, 1, 2, 3]
    assert [c.text for c in r.choices] == [expected(server, [5, 6, 7], 4)] * 2 + [expected(server, [8, 9], 4)] * 2
    assert r.usage.prompt_tokens == 5 and r.usage.completion_tokens == 16
    texts = client.completions.create(model="tiny", prompt=["hello", "world"], max_tokens=4, temperature=0)
    assert len(texts.choices) == 2


def test_a_stop_string_ends_the_text_and_is_left_out(client: openai.OpenAI, server: Running) -> None:
    whole = client.completions.create(model="tiny", prompt=PROMPT, max_tokens=40, temperature=0).choices[0].text
    stop = whole[20:23]
    r = client.completions.create(model="tiny", prompt=PROMPT, max_tokens=40, temperature=0, stop=[stop])
    assert r.choices[0].text == whole[: whole.index(stop)] and r.choices[0].finish_reason == "stop"
    stream = client.completions.create(
        model="tiny", prompt=PROMPT, max_tokens=40, temperature=0, stop=stop, stream=True
    )
    assert "".join(c.choices[0].text for c in stream) == r.choices[0].text
    server.wait_idle()


def test_the_same_seed_repeats_and_no_seed_does_not(client: openai.OpenAI) -> None:
    def text(**kw: object) -> str:
        return (
            client.completions.create(model="tiny", prompt=PROMPT, max_tokens=16, temperature=1.5, **kw).choices[0].text
        )

    assert text(seed=3) == text(seed=3) != text(seed=4)
    assert text() != text()


def test_cuts_are_passed_on(client: openai.OpenAI) -> None:
    greedy_text = client.completions.create(model="tiny", prompt=PROMPT, max_tokens=8, temperature=0).choices[0].text
    for extra in ({"top_k": 1}, {"min_p": 1.0}):
        r = client.completions.create(model="tiny", prompt=PROMPT, max_tokens=8, temperature=2, extra_body=extra)
        assert r.choices[0].text == greedy_text
    assert (
        client.completions.create(model="tiny", prompt=PROMPT, max_tokens=8, top_p=1e-6).choices[0].text == greedy_text
    )


def test_chat_logprobs_whole_and_streamed_agree(client: openai.OpenAI) -> None:
    common = {
        "model": "tiny",
        "messages": MESSAGES,
        "max_tokens": 4,
        "temperature": 0,
        "logprobs": True,
        "top_logprobs": 3,
    }
    content = client.chat.completions.create(**common).choices[0].logprobs.content
    assert len(content) == 4
    for entry in content:
        assert entry.token == entry.top_logprobs[0].token and entry.logprob == entry.top_logprobs[0].logprob < 0
        assert len(entry.top_logprobs) == 3
    streamed = [
        e
        for c in client.chat.completions.create(stream=True, **common)
        for ch in c.choices
        if ch.logprobs
        for e in ch.logprobs.content
    ]
    assert streamed == content


def test_completion_logprobs(client: openai.OpenAI) -> None:
    r = client.completions.create(model="tiny", prompt=PROMPT, max_tokens=4, temperature=0, logprobs=2)
    lp = r.choices[0].logprobs
    assert len(lp.tokens) == len(lp.token_logprobs) == len(lp.top_logprobs) == len(lp.text_offset) == 4
    assert all(len(t) == 2 for t in lp.top_logprobs) and lp.text_offset[0] == 0


def test_models_are_listed(client: openai.OpenAI) -> None:
    assert [m.id for m in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").id == "tiny"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


def test_errors_reach_the_client_as_its_own_types(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as e:
        client.completions.create(model="gpt-9", prompt="x")
    assert e.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as e:
        client.completions.create(model="tiny", prompt=[1] * 300, max_tokens=1)
    assert e.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError, match="temperature"):
        client.completions.create(model="tiny", prompt="x", temperature=-1)

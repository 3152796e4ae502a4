"""Raw HTTP: limits, bad input, disconnects, failures, health."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from live_server import Running


def post(server: Running, path: str = "completions", **body: Any) -> httpx.Response:
    base = {"model": "tiny", "prompt": [5, 6, 7], "max_tokens": 4, "temperature": 0}
    if path == "chat/completions":
        base = {"model": "tiny", "messages": [{"role": "user", "content": "one"}], "max_tokens": 4}
    return httpx.post(f"{server.url}/v1/{path}", json={**base, **body}, timeout=30)


@pytest.mark.parametrize(
    ("length", "max_tokens", "status"),
    [
        (255, 1, 200),
        (255, 2, 400),
        (256, 1, 400),
        (257, 1, 400),
        (254, None, 400),
        (240, None, 200),
        (255, 0, 400),
        (10, 0, 400),
        (10, -1, 400),
        (10, 246, 200),
        (10, 247, 400),
    ],
)
def test_prompt_and_answer_at_the_edge_of_the_context(
    server: Running, length: int, max_tokens: int | None, status: int
) -> None:
    r = post(server, prompt=[5] * length, max_tokens=max_tokens, ignore_eos=True)
    assert r.status_code == status, r.text
    if status == 200:
        assert r.json()["usage"]["completion_tokens"] == (16 if max_tokens is None else max_tokens)


@pytest.mark.parametrize("absent", [{"max_tokens": None}, {"max_tokens": None, "max_completion_tokens": None}])
def test_a_chat_without_a_limit_may_fill_the_context(server: Running, absent: dict[str, Any]) -> None:
    r = post(server, "chat/completions", ignore_eos=True, temperature=0, **absent).json()
    assert r["usage"]["total_tokens"] == 256 and r["choices"][0]["finish_reason"] == "length"


BAD = [
    {"temperature": "hot"},
    {"temperature": 1e9},
    {"top_p": 0},
    {"top_p": 2},
    {"top_k": -2},
    {"min_p": -1},
    {"n": 0},
    {"n": 65},
    {"stop": [""]},
    {"stop": ["a"] * 17},
    {"stream": "maybe"},
    {"stream_options": {"include_usage": True}},
    {"seed": 1 << 70},
    {"frequency_penalty": 0.5},
    {"presence_penalty": -1},
    {"logit_bias": {"5": 1}},
    {"echo": True},
    {"best_of": 5},
    {"suffix": "x"},
    {"logprobs": 21},
    {"prompt": []},
    {"prompt": [9999]},
    {"prompt": [-1]},
    {"prompt": None},
    {"prompt": [[]]},
    {"prompt": {}},
    {"response_format": {"type": "json_object"}},
    {"logprobs": -1},
]


@pytest.mark.parametrize("bad", BAD, ids=[json.dumps(b)[:50] for b in BAD])
@pytest.mark.parametrize("stream", [False, True])
def test_bad_parameters_are_400_with_an_openai_error_body(server: Running, bad: dict[str, Any], stream: bool) -> None:
    r = post(server, **{"stream": stream and "stream_options" not in bad, **bad})
    assert r.status_code == 400, r.text
    error = r.json()["error"]
    assert set(error) == {"message", "type", "param", "code"} and error["type"] == "invalid_request_error"
    assert error["message"]


@pytest.mark.parametrize(
    "bad",
    [
        {"messages": []},
        {"messages": [{"content": "x"}]},
        {"messages": "hi"},
        {"messages": [{"role": "user", "content": 5}]},
        {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
        {"tools": [{"type": "function"}]},
        {"chat_template_kwargs": {"messages": []}}, {"chat_template_kwargs": {"bos_token": ""}}, {"top_logprobs": 3},
        {"logprobs": True, "top_logprobs": 21},
        {"logprobs": 3.5},
    ],
)
def test_bad_chat_requests_are_400(server: Running, bad: dict[str, Any]) -> None:
    assert post(server, "chat/completions", **bad).status_code == 400


@pytest.mark.parametrize(
    "neutral",
    [
        {"frequency_penalty": 0},
        {"presence_penalty": 0.0},
        {"logit_bias": None},
        {"user": "me"},
        {"response_format": {"type": "text"}},
        {"tools": []},
        {"top_k": -1},
        {"echo": False},
    ],
)
def test_parameters_that_change_nothing_are_accepted(server: Running, neutral: dict[str, Any]) -> None:
    assert post(server, **neutral).status_code == 200


def test_a_body_that_is_no_json_and_an_unknown_path_have_error_bodies(server: Running) -> None:
    r = httpx.post(f"{server.url}/v1/completions", content=b"{")
    assert r.status_code == 400 and "error" in r.json()
    r = httpx.get(f"{server.url}/v1/nothing")
    assert r.status_code == 404 and "error" in r.json()
    assert httpx.get(f"{server.url}/v1/completions").status_code == 405


def test_health_tells_what_runs(server: Running) -> None:
    h = httpx.get(f"{server.url}/health").json()
    assert h["status"] == "ok" and h["certified"] and h["uncertified_reason"] is None and h["target"] == "cpu"
    assert h["digests"]["model.pkt"] == "0" * 64
    assert h["load"]["total_blocks"] == 64 and h["last_error"] is None
    assert h["memory"]["arena_bytes"] == 1024 and h["memory"]["resident_bytes"] > 1 << 20


def test_greedy_text_is_the_same_among_concurrent_requests(server: Running) -> None:
    def text(i: int) -> str:
        return post(server, prompt=[i + 3] * (i + 1), max_tokens=30).json()["choices"][0]["text"]

    alone = [text(i) for i in range(12)]
    with ThreadPoolExecutor(12) as pool:
        assert list(pool.map(text, range(12))) == alone
    server.wait_idle()


def events(lines: Any) -> list[Any]:
    return [line[6:] for line in lines if line.startswith("data: ")]


def test_a_stream_is_well_formed_server_sent_events(server: Running) -> None:
    r = post(server, stream=True, max_tokens=6)
    assert r.headers["content-type"].startswith("text/event-stream")
    data = events(r.text.splitlines())
    assert data[-1] == "[DONE]"
    chunks = [json.loads(d) for d in data[:-1]]
    assert len({c["id"] for c in chunks}) == 1
    assert [c["choices"][0]["finish_reason"] for c in chunks][-1] == "length"


@pytest.mark.parametrize("chunks", [0, 2])
def test_a_client_that_leaves_a_stream_frees_its_blocks(start: Callable[..., Running], chunks: int) -> None:
    server = start(step_s=0.004)
    for i in range(20):
        body = {"model": "tiny", "prompt": [5, 6, i], "max_tokens": 250, "stream": True, "n": 2, "ignore_eos": True}
        with httpx.stream("POST", f"{server.url}/v1/completions", json=body) as r:
            assert r.status_code == 200
            lines = r.iter_lines()
            for _ in range(chunks):
                next(lines)
    finished, end = server.service.engine.engine.metrics.finished, time.monotonic() + 5
    while sum(finished.values()) < 40:
        assert time.monotonic() < end, finished
        time.sleep(0.005)
    assert finished["abort"] == 40
    server.wait_idle(1)


def test_a_client_that_leaves_a_whole_answer_frees_its_blocks(start: Callable[..., Running]) -> None:
    server = start(step_s=0.01)
    for _ in range(5):
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(
                f"{server.url}/v1/completions",
                timeout=0.05,
                json={"model": "tiny", "prompt": [5], "max_tokens": 250, "ignore_eos": True},
            )
    server.wait_idle(5)
    assert server.service.engine.engine.metrics.finished["abort"] == 5


def test_a_client_that_dies_while_queued_leaves_the_queue(start: Callable[..., Running]) -> None:
    server = start(step_s=0.01, max_slots=1)
    running = threading.Thread(target=lambda: post(server, max_tokens=100, ignore_eos=True))
    running.start()
    while not server.service.engine.engine.running:
        time.sleep(0.002)
    host, port = server.url.removeprefix("http://").split(":")
    body = json.dumps({"model": "tiny", "prompt": [5], "max_tokens": 250}).encode()
    with socket.create_connection((host, int(port))) as s:
        s.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
        )
        while not server.service.engine.engine.waiting:
            time.sleep(0.002)
    while server.service.engine.engine.waiting:
        time.sleep(0.002)
    assert server.service.engine.engine.running == 1, "the other one goes on"
    running.join()
    server.wait_idle()


def test_a_full_queue_is_503(start: Callable[..., Running]) -> None:
    server = start(max_waiting=1, step_s=0.01, max_slots=1)
    with ThreadPoolExecutor(6) as pool:
        codes = [r.status_code for r in pool.map(lambda _: post(server, max_tokens=30, ignore_eos=True), range(6))]
    assert set(codes) == {200, 503}


def test_a_stuck_step_is_500_and_the_next_request_works(start: Callable[..., Running]) -> None:
    server = start(fail_at=2)
    r = post(server, max_tokens=9, ignore_eos=True)
    assert r.status_code == 500 and r.json()["error"]["code"] == "StuckDependency"
    assert "counter 3" in httpx.get(f"{server.url}/health").json()["last_error"]
    assert post(server).status_code == 200


def test_a_stuck_step_in_a_stream_is_an_error_event(start: Callable[..., Running]) -> None:
    server = start(fail_at=2)
    data = events(post(server, max_tokens=9, stream=True, ignore_eos=True).text.splitlines())
    assert data[-1] == "[DONE]" and "counter 3" in json.loads(data[-2])["error"]["message"]
    server.wait_idle()


def test_a_dead_engine_is_visible_and_refuses(start: Callable[..., Running], monkeypatch: pytest.MonkeyPatch) -> None:
    server = start()
    monkeypatch.setattr(threading, "excepthook", lambda args: None)
    monkeypatch.setattr(server.backend, "run", lambda *a: 1 / 0)
    assert post(server).status_code == 500
    while server.service.engine.alive:
        time.sleep(0.005)
    health = httpx.get(f"{server.url}/health")
    assert health.status_code == 503 and health.json()["status"] == "failed"
    assert post(server).status_code == 503

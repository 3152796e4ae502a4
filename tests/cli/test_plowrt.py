"""The command line: one JSON object on stdout, one-line errors with exit codes, a server that stops when told to."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import openai
import pytest
import typer
from tiny_bundle import tiny_bundle
from typer.testing import CliRunner

from plow.cli.common import new_app, reporting
from plow.cli.plowrt import app
from plow.errors import StuckDependency


@pytest.fixture
def bundle(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_bundle(tiny_llama, tmp_path_factory)


def generate(bundle: Path, *args: str) -> tuple[int, str, str]:
    r = CliRunner().invoke(app, ["generate", "--assets", str(bundle), "--backend", "numpy", *args])
    return r.exit_code, r.stdout, r.stderr


def test_generate_prints_one_json_object(bundle: Path) -> None:
    code, out, err = generate(
        bundle, "--allow-uncertified", "--prompt", "hello", "--max-tokens", "6", "--ignore-eos", "--json"
    )
    report = json.loads(out)
    assert code == 0 and report["schema"] == "plowrt.generate/1"
    assert len(report["token_ids"]) == 6 and report["finish_reason"] == "length"
    assert report["prompt_tokens"] == len(report["prompt_ids"]) and isinstance(report["text"], str)
    assert {"load_s", "ttft_s", "decode_tok_s", "tpot_s", "total_s"} <= set(report["timings"])
    assert report["bundle"]["certified"] is False and "UNCERTIFIED" in err and "oracle" in err


def test_text_ids_stdin_and_chat_are_ways_to_give_a_prompt(bundle: Path) -> None:
    common = ("--allow-uncertified", "--max-tokens", "4", "--json")
    base = json.loads(generate(bundle, "--prompt", "hello", *common)[1])
    ids = ",".join(str(i) for i in base["prompt_ids"])
    assert json.loads(generate(bundle, "--prompt-ids", ids, *common)[1])["token_ids"] == base["token_ids"]
    chat = json.loads(generate(bundle, "--prompt", "hello", "--chat", *common)[1])
    assert chat["prompt_tokens"] > base["prompt_tokens"]
    r = CliRunner().invoke(
        app, ["generate", "--assets", str(bundle), "--backend", "numpy", "--prompt", "-", *common], input="hello"
    )
    assert json.loads(r.stdout)["token_ids"] == base["token_ids"]


def test_people_see_the_text_on_stdout_and_the_rest_on_stderr(bundle: Path) -> None:
    args = ("--allow-uncertified", "--prompt", "hello", "--max-tokens", "6", "--ignore-eos")
    text = json.loads(generate(bundle, *args, "--json")[1])["text"]
    code, out, err = generate(bundle, *args)
    assert code == 0 and out == text + "\n" and "6 tokens, length" in err


@pytest.mark.parametrize(("args", "kind", "what"), [
    ((), "BundleError", "certificate D is missing"),
    (("--allow-uncertified", "--max-tokens", "0"), "RequestError", "max_tokens is 0"),
    (("--allow-uncertified", "--max-tokens", "500"), "ContextTooLong", "exceed the context of 128"),
    (("--allow-uncertified", "--temperature", "-1"), "RequestError", "temperature is -1"),
    (("--allow-uncertified", "--backend", "gpu"), "RequestError", "unknown backend 'gpu'"),
    (("--allow-uncertified", "--prompt-ids", "1,x"), "RequestError", "exactly one|give --prompt"),
])  # fmt: skip
def test_errors_are_one_line_or_one_object(bundle: Path, args: tuple[str, ...], kind: str, what: str) -> None:
    code, out, err = generate(bundle, "--prompt", "hello", *args)
    assert code == 2 and out == "" and re.search(what, err)
    lines = [line for line in err.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1 and "Traceback" not in err
    code, out, _ = generate(bundle, "--prompt", "hello", "--json", *args)
    error = json.loads(out)
    assert code == 2 and error["schema"] == "plow.error/1" and error["error"] == kind and re.search(what, error["what"])


def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    code, _, err = generate(tmp_path, "--prompt", "x", "--debug")
    assert code == 2 and "Traceback" in err and "cannot read the manifest" in err


def test_a_bug_is_called_one_and_exit_codes_follow_the_error() -> None:
    cli = new_app("test")

    @cli.command()
    def run(name: str, as_json: bool = False) -> None:
        with reporting(as_json):
            if name == "stuck":
                raise StuckDependency("counter 1", "packet 2")
            if name == "exit":
                raise typer.Exit(75)
            raise ZeroDivisionError("oops")

    def result(*args: str) -> tuple[int, str, str]:
        r = CliRunner().invoke(cli, list(args))
        return r.exit_code, r.stdout, r.stderr

    assert result("stuck") == (1, "", "error: counter 1 [packet 2]\n")
    assert result("exit")[0] == 75
    code, _, err = result("bug")
    assert code == 2 and err.startswith("internal error: ZeroDivisionError: oops -> run again with --debug")
    assert json.loads(result("bug", "--as-json")[1])["error"] == "InternalError"


def test_serve_answers_the_openai_client_and_stops_on_a_signal(bundle: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "plow.cli.plowrt",
        "serve",
        "--assets",
        str(bundle),
        "--port",
        "0",
        "--allow-uncertified",
    ]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, "COLUMNS": "200"})
    try:
        lines = iter(server.stderr.readline, "")
        url = next(m.group(1) for line in lines if (m := re.search(r"serving llama at (\S+)", line)))
        with openai.OpenAI(base_url=url, api_key="none") as client:
            messages = [{"role": "user", "content": "what is one"}]
            r = client.chat.completions.create(model="llama", messages=messages, max_tokens=8, temperature=0)
            assert r.usage.completion_tokens <= 8 and r.choices[0].finish_reason in ("stop", "length")
            stream = client.chat.completions.create(
                model="llama", messages=messages, max_tokens=8, temperature=0, stream=True
            )
            assert "".join(c.choices[0].delta.content or "" for c in stream) == r.choices[0].message.content
        server.send_signal(signal.SIGTERM)
        assert server.wait(10) in (0, -signal.SIGTERM)
    finally:
        server.kill()
        server.wait()


def test_an_address_in_use_is_a_typed_error(bundle: Path) -> None:
    args = ["serve", "--assets", str(bundle), "--allow-uncertified", "--backend", "numpy", "--host", "203.0.113.1"]
    r = CliRunner().invoke(app, args)
    assert r.exit_code == 2 and "cannot listen" in r.stderr

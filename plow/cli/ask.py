"""`python -m plow.cli.ask --assets BUNDLE QUESTION`: serve a bundle, ask one chat question over HTTP, stop the server.

The end-to-end check of a deployment: another process, a real socket, the public API.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from plow.cli.common import emit
from plow.errors import PlowError, RequestError
from plow.serve.process import START_TIMEOUT_S, http_json, serving


def chat(base: str, question: str, max_tokens: int) -> dict[str, Any]:
    """One greedy chat completion: {"answer", "model", "finish_reason", "usage", "seconds"}. Raises RequestError."""
    model = http_json(f"{base}/v1/models")["data"][0]["id"]
    body = {"model": model, "messages": [{"role": "user", "content": question}], "max_tokens": max_tokens,
            "temperature": 0}
    start = time.perf_counter()
    reply = http_json(f"{base}/v1/chat/completions", body)
    seconds = time.perf_counter() - start
    choice = reply["choices"][0]
    answer = (choice["message"]["content"] or "").strip()
    if not answer:
        raise RequestError("the answer is empty", base, "check the chat template and the end-of-sequence ids")
    return {"answer": answer, "model": model, "finish_reason": choice["finish_reason"], "usage": reply.get("usage"),
            "seconds": round(seconds, 4)}


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def ask(
    question: Annotated[str, typer.Argument(help="the user message")],
    assets: Annotated[Path, typer.Option(help="bundle directory")],
    max_tokens: Annotated[int, typer.Option(help="longest answer, tokens")] = 48,
    start_timeout: Annotated[float, typer.Option(help="seconds until the server must be ready")] = START_TIMEOUT_S,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON object on stdout")] = False,
) -> None:
    """Serve BUNDLE on a free port, ask QUESTION over HTTP, print the answer, stop the server."""
    try:
        with serving(assets, start_timeout) as base:
            result = chat(base, question, max_tokens)
    except PlowError as e:
        if as_json:
            emit(dict(e.as_dict()))
        print(f"error: {e.line()}", file=sys.stderr)
        raise typer.Exit(e.exit_code) from None
    if as_json:
        emit({"schema": "plow.ask/1", "question": question, **result})
    else:
        print(f"Q: {question}\nA: {result['answer']}")


if __name__ == "__main__":
    app()

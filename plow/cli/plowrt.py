"""`plowrt`: run and serve bundles."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from plow.cli.common import DebugOption, JsonOption, console, emit, new_app, reporting
from plow.cli.trace import trace
from plow.errors import RequestError

if TYPE_CHECKING:
    from plow.runtime.llm import LLM, Completion

app = new_app("Run and serve the bundles that plowc builds.")

STEPS_PER_CALL = 8
"""Tokens of a backend call when nobody watches them arrive."""
AssetsOption = Annotated[Path, typer.Option("--assets", help="bundle directory")]
BackendOption = Annotated[
    str, typer.Option("--backend", help="cpu, cuda, or numpy (the readable oracle; slow); default: the bundle's target")
]
UncertifiedOption = Annotated[bool, typer.Option("--allow-uncertified", help="run packets without a certificate")]


def open_llm(assets: Path, backend: str, allow_uncertified: bool, steps_per_call: int = 0, text: bool = False) -> LLM:
    """Load a bundle and say loudly what is unusual about it. text: refuse a bundle that has none."""
    from plow.runtime.llm import LLM

    llm = LLM(assets, backend, allow_uncertified, steps_per_call, text)
    if llm.bundle.synthetic:
        console.print("SHAPE BUNDLE: random weights; its tokens mean nothing", style="bold yellow", markup=False)
    if not llm.bundle.certified:
        console.print(f"UNCERTIFIED bundle: {llm.bundle.uncertified_reason}", style="bold yellow", markup=False)
    if backend == "numpy":
        console.print("the numpy backend is an oracle, not a product: expect seconds per token", style="bold yellow")
    return llm


@app.command()
def generate(
    assets: AssetsOption,
    prompt: Annotated[str | None, typer.Option(help="text; - reads it from stdin")] = None,
    prompt_ids: Annotated[str | None, typer.Option(help="token ids instead of text, for example 1,22,333")] = None,
    chat: Annotated[bool, typer.Option("--chat", help="wrap the prompt in the model's chat template")] = False,
    max_tokens: Annotated[int, typer.Option(help="longest answer, tokens")] = 64,
    temperature: Annotated[float, typer.Option(help="0 = greedy")] = 0.0,
    top_k: Annotated[int, typer.Option(help="0 = off")] = 0,
    top_p: Annotated[float, typer.Option(help="1 = off")] = 1.0,
    min_p: Annotated[float, typer.Option(help="0 = off")] = 0.0,
    seed: Annotated[int, typer.Option(help="equal seeds repeat a text")] = 0,
    stop: Annotated[list[str] | None, typer.Option(help="string that ends the text; may be given again")] = None,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="go on after an end-of-sequence token")] = False,
    backend: BackendOption = "",
    allow_uncertified: UncertifiedOption = False,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Generate text from one prompt."""
    with reporting(as_json, debug):
        from plow.runtime.sampler import SamplingParams

        sampling = SamplingParams(temperature, top_k, top_p, min_p, seed)
        text = sys.stdin.read() if prompt == "-" else prompt
        llm = open_llm(assets, backend, allow_uncertified, STEPS_PER_CALL if as_json else 1, text is not None)
        ids = _prompt_ids(llm, text, prompt_ids, chat)
        show = None if as_json else lambda _, piece: print(piece, end="", flush=True)
        done = llm.generate([ids], sampling, max_tokens, stop or (), ignore_eos, show)[0]
        if as_json:
            emit(generate_report(llm, done))
        else:
            print("" if llm.tokenizer else done.token_ids)
            times = timings(llm, done)
            console.print(f"{len(done.token_ids)} tokens, {done.finish}; first after {times['ttft_s'] * 1e3:.0f} ms, "
                          f"then {times['decode_tok_s'] or 0:.0f} tok/s", style="dim")
        llm.close()


def _prompt_ids(llm: LLM, text: str | None, ids: str | None, chat: bool) -> list[int]:
    if (text is None) == (ids is None):
        raise RequestError("give --prompt or --prompt-ids", "command line", "exactly one of them")
    if ids is not None:
        try:
            return [int(i) for i in ids.split(",")]
        except ValueError:
            raise RequestError(f"{ids!r} is no list of token ids", "--prompt-ids", "for example 1,22,333") from None
    return llm.encode_chat([{"role": "user", "content": text}]) if chat else llm.encode(text or "")


def timings(llm: LLM, done: Completion) -> dict[str, Any]:
    """Seconds and rates of a finished completion."""
    t = done.timing
    if t is None:
        raise RequestError("the request did not finish", "engine")
    prompt = len(done.prompt_ids)
    return {"load_s": llm.load_s, "ttft_s": t.ttft, "prompt_tok_s": prompt / t.ttft if t.ttft else None,
            "tpot_s": t.tpot, "decode_tok_s": 1 / t.tpot if t.tpot else None, "total_s": t.last_token - t.arrived}


def generate_report(llm: LLM, done: Completion) -> dict[str, Any]:
    return {"schema": "plowrt.generate/1", "text": done.text, "token_ids": done.token_ids, "finish_reason": done.finish,
            "prompt_tokens": len(done.prompt_ids), "prompt_ids": done.prompt_ids, "timings": timings(llm, done),
            "bundle": {"path": str(llm.bundle.path), "packets_sha256": llm.bundle.packet_digest,
                       "certified": llm.bundle.certified, "target": llm.bundle.target,
                       "synthetic": llm.bundle.synthetic}}


@app.command()
def serve(
    assets: AssetsOption,
    host: Annotated[str, typer.Option(help="address to listen on")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="TCP port; 0 = any free one")] = 8080,
    model_name: Annotated[str | None, typer.Option(help="name that clients use; default: the bundle's")] = None,
    max_waiting: Annotated[int, typer.Option(help="requests that may queue before clients get 503")] = 256,
    backend: BackendOption = "",
    allow_uncertified: UncertifiedOption = False,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON object on stdout when ready")] = False,
    debug: DebugOption = False,
) -> None:
    """Serve a bundle with an OpenAI-compatible HTTP API until interrupted."""
    with reporting(as_json, debug):
        from plow.serve.server import run_server

        llm = open_llm(assets, backend, allow_uncertified, text=True)

        def ready(url: str, name: str) -> None:
            console.print(f"serving {name} at {url}/v1", style="bold green", markup=False)
            if as_json:
                emit({"schema": "plowrt.serve/1", "url": url, "model": name, "certified": llm.bundle.certified})

        run_server(llm, host, port, model_name, max_waiting, ready)


@app.command()
def bench(
    assets: AssetsOption,
    rounds: Annotated[int, typer.Option(help="interleaved rounds", min=1)] = 5,
    tokens: Annotated[int, typer.Option(help="decoded tokens of a measurement", min=2)] = 64,
    prompt_tokens: Annotated[
        int, typer.Option(help="length of the measured prompt; on a GPU: context of the decode", min=1)
    ] = 512,
    backend: BackendOption = "",
    allow_uncertified: UncertifiedOption = False,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Measure decode at batch 1 and 8 and a long prompt, in interleaved rounds, with the machine's mode of each; on a
    GPU decode in the kernel and through the engine."""
    with reporting(as_json, debug):
        from plow.runtime.bench import run_bench
        from plow.runtime.cuda_bench import run_cuda_bench

        llm = open_llm(assets, backend, allow_uncertified)
        run = run_cuda_bench if llm.bundle.target == "h200" else run_bench
        report = run(llm, rounds, tokens, prompt_tokens, lambda line: console.print(line, style="dim", markup=False))
        if as_json:
            emit(report)
        elif "decode" in report:
            for d in report["decode"]:
                print(f"batch {d['batch']}: {d['ms_kernel']:.4f} ms a step in the kernel, {d['ms_engine']:.4f} through "
                      f"the engine ({d['tok_s']:.0f} tok/s), {d['bytes'] / 1e9:.3f} GB = {d['gb_s']:.0f} GB/s")
        else:
            for name, m in report["measurements"].items():
                print(f"{name:<12} {m['median']:9.1f} {m['unit']}  ({m['min']:.1f} .. {m['max']:.1f})")
            print(f"{'weights':<12} {report['weight_bytes_per_s'] / 1e9:9.1f} GB/s = {report['read_share']:.0%} of the "
                  f"measured read bandwidth (cores: {', '.join(report['modes'])})")
        llm.close()


app.command()(trace)


def main() -> None:
    """Entry point of the console script."""
    app()


if __name__ == "__main__":
    main()

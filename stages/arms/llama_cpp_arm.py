"""Arm: llama.cpp through llama-cpp-python, in a Python that has it. `PYTHON llama_cpp_arm.py MODEL.gguf THREADS`

The file runs alone (its Python need not have plow): the loop of protocol.serve is repeated in its last lines.
"""

from __future__ import annotations

import ctypes
import json
import sys
from typing import Any

import llama_cpp as lib
import numpy as np

lib.llama_backend_init()
QUIET = lib.llama_log_callback(lambda *a: None)
lib.llama_log_set(QUIET, ctypes.c_void_p(0))
MODEL = lib.llama_model_load_from_file(sys.argv[1].encode(), lib.llama_model_default_params())
THREADS = int(sys.argv[2])
VOCAB = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(MODEL))


def context(sequences: int) -> Any:
    p = lib.llama_context_default_params()
    p.n_ctx, p.n_batch, p.n_ubatch, p.n_seq_max = 1024 * sequences, 512, 512, sequences
    p.n_threads = p.n_threads_batch = THREADS
    return lib.llama_init_from_model(MODEL, p)


CONTEXTS = {1: context(1), 8: context(8)}


def decode(ctx: Any, tokens: list[int], positions: list[int], sequences: list[int], wanted: list[bool]) -> list[int]:
    """One llama_decode; greedy tokens of the wanted rows."""
    batch = lib.llama_batch_init(len(tokens), 0, 1)
    batch.n_tokens = len(tokens)
    for i, token in enumerate(tokens):
        batch.token[i], batch.pos[i], batch.n_seq_id[i] = token, positions[i], 1
        batch.seq_id[i][0], batch.logits[i] = sequences[i], wanted[i]
    if lib.llama_decode(ctx, batch):
        raise RuntimeError("llama_decode failed")
    rows = [lib.llama_get_logits_ith(ctx, i) for i in range(len(tokens)) if wanted[i]]
    out = [int(np.ctypeslib.as_array(r, (VOCAB,)).argmax()) for r in rows]
    lib.llama_batch_free(batch)
    return out


def prompt(ctx: Any, sequence: int, ids: list[int]) -> int:
    token = -1
    for at in range(0, len(ids), 512):
        part = ids[at : at + 512]
        wanted = [False] * (len(part) - 1) + [at + 512 >= len(ids)]
        out = decode(ctx, part, list(range(at, at + len(part))), [sequence] * len(part), wanted)
        token = out[0] if out else token
    return token


STATE: dict = {}


def prepare(request: dict) -> None:
    prompts = request["prompts"]
    ctx = CONTEXTS[1 if len(prompts) == 1 else 8]
    lib.llama_memory_clear(lib.llama_get_memory(ctx), True)
    STATE.update(request=request, ctx=ctx)
    if request["what"] == "decode":
        STATE["tokens"] = [prompt(ctx, i, ids) for i, ids in enumerate(prompts)]


def go() -> list[list[int]]:
    request, ctx = STATE["request"], STATE["ctx"]
    prompts = request["prompts"]
    if request["what"] == "prompt":
        return [[prompt(ctx, 0, prompts[0])]]
    tokens, made, n = STATE["tokens"], [], len(prompts)
    for step in range(request["steps"]):
        tokens = decode(ctx, tokens, [len(p) + step for p in prompts], list(range(n)), [True] * n)
        made.append(tokens)
    return [list(t) for t in zip(*made, strict=True)]


def main() -> None:
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        if request["cmd"] == "prepare":
            prepare(request)
            print(json.dumps({"ok": True}), flush=True)
        elif request["cmd"] == "go":
            print(json.dumps({"tokens": go()}), flush=True)
        else:
            print(json.dumps({"arm": "llama.cpp", "llama_cpp_python": lib.__version__}), flush=True)


if __name__ == "__main__":
    main()

"""transformers as a server: JSON lines on stdin and stdout, arrays through .npy/.npz files. Run by `client.HFOracle`.

It runs as a script in an isolated interpreter and imports nothing of this project, so the oracle and the timer never
share a process with the code that they judge. One request a line: {"op": ..., ...}; one answer a line:
{"ok": true, ...} or {"ok": false, "kind": "...", "error": "..."}.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

import numpy as np

SCALARS = (
    "eps",
    "variance_epsilon",
    "scaling",
    "sliding_window",
    "head_dim",
    "num_key_value_groups",
    "scalar_embed_scale",
    "layer_type",
)


class Server:
    def __init__(self, checkpoint: str, dtype: str, attn: str, threads: int) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        self.torch = torch
        if threads:
            torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(True)
        self.model = AutoModelForCausalLM.from_pretrained(
            checkpoint, dtype=getattr(torch, dtype), attn_implementation=attn, local_files_only=True
        ).eval()

    def op_hello(self) -> dict[str, Any]:
        import transformers

        return {
            "transformers": transformers.__version__,
            "torch": self.torch.__version__,
            "class": type(self.model).__name__,
            "threads": self.torch.get_num_threads(),
        }

    def _forward(self, tokens: list[int], start: int = 0, cache: Any = None, use_cache: bool = False) -> Any:
        """Positions are always explicit: some classes derive them wrongly from their cache."""
        ids = self.torch.tensor([tokens])
        positions = self.torch.arange(start, start + len(tokens))[None]
        with self.torch.no_grad():
            return self.model(
                input_ids=ids,
                position_ids=positions,
                use_cache=use_cache,
                **({"cache": cache} if cache is not None else {}),
            )

    def op_logits(self, tokens: list[int], out: str, rows: list[int] | None = None) -> dict[str, Any]:
        """f32 [len(rows), vocab] (all positions without rows) -> out.npy"""
        logits = self._forward(tokens).logits[0].float()
        np.save(out, (logits if rows is None else logits[rows]).numpy())
        return {}

    def op_greedy(self, tokens: list[int], count: int) -> dict[str, Any]:
        """tokens: `count` greedy ones (an end token does not stop it; the lowest id wins a tie); margins: top-1 minus
        top-2 logit."""
        new: list[int] = []
        margins: list[float] = []
        o = self._forward(tokens, use_cache=True)
        while True:
            row = o.logits[0, -1].float()
            new.append(int(row.argmax()))
            top = row.topk(2).values
            margins.append(float(top[0] - top[1]))
            if len(new) == count:
                return {"tokens": new, "margins": margins}
            o = self._forward([new[-1]], len(tokens) + len(new) - 1, o["cache"], use_cache=True)

    def op_capture(self, tokens: list[int], out: str, layers: list[int] | None = None) -> dict[str, Any]:
        """Inputs and outputs of every module as "<module>.in" / "<module>.out", and the rotated queries and keys as
        "<attention module>.query" / ".key": f32 [T, features] -> out.npz. `layers` limits which blocks are kept."""
        kept: dict[str, np.ndarray] = {}
        hooks = [
            m.register_forward_hook(self._hook(name, kept, len(tokens)), with_kwargs=True)
            for name, m in self.model.named_modules()
            if name and _wanted(name, layers)
        ]
        restore = self._patch_attention(kept, len(tokens), layers)
        try:
            self._forward(tokens)
        finally:
            restore()
            for h in hooks:
                h.remove()
        np.savez(out, **kept)  # type: ignore[arg-type]
        return {"names": list(kept)}

    def _hook(self, name: str, kept: dict[str, np.ndarray], rows: int) -> Any:
        def hook(module: Any, args: Any, kwargs: Any, output: Any) -> None:
            for side, value in (("in", args[0] if args else kwargs.get("hidden_states")), ("out", output)):
                value = value[0] if isinstance(value, tuple) else value
                if self.torch.is_tensor(value):
                    array = _rows(value.detach(), rows)
                    if array is not None:
                        kept[f"{name}.{side}"] = array

        return hook

    def _patch_attention(self, kept: dict[str, np.ndarray], rows: int, layers: list[int] | None) -> Any:
        """Wrap the eager attention function of the model's own file: the only place that sees q and k after RoPE."""
        home: Any = sys.modules[type(self.model).__module__]
        names = {id(m): n for n, m in self.model.named_modules()}
        inner = home.eager_attention_forward

        def wrapped(module: Any, query: Any, key: Any, value: Any, mask: Any, **kwargs: Any) -> Any:
            name = names[id(module)]
            if _wanted(name, layers):
                for side, t in (("query", query), ("key", key)):
                    array = _rows(t.detach(), rows)
                    if array is not None:
                        kept[f"{name}.{side}"] = array
            return inner(module, query, key, value, mask, **kwargs)

        home.eager_attention_forward = wrapped
        return lambda: setattr(home, "eager_attention_forward", inner)

    def op_attributes(self) -> dict[str, Any]:
        """Scalars that transformers' modules really hold (eps, attention scaling, window, ...), by module name."""
        found: dict[str, dict[str, Any]] = {}
        for name, m in self.model.named_modules():
            values = {k: getattr(m, k) for k in SCALARS if isinstance(getattr(m, k, None), int | float | str)}
            if values:
                found[name] = values
        return {"modules": found}

    def op_time_decode(self, tokens: list[int], count: int, repeats: int = 1) -> dict[str, Any]:
        """seconds[r][i]: time of decode step i (one token, batch 1) after a prompt, in repeat r; tokens: what came out,
        so that the caller can check the timed call."""
        seconds: list[list[float]] = []
        new: list[int] = []
        for _ in range(repeats):
            o, times, new = self._forward(tokens, use_cache=True), [], []
            for i in range(count):
                new.append(int(o.logits[0, -1].argmax()))
                start = time.perf_counter()
                o = self._forward([new[-1]], len(tokens) + i, o["cache"], use_cache=True)
                times.append(time.perf_counter() - start)
            seconds.append(times)
        return {"seconds": seconds, "tokens": new}

    def op_time_prefill(self, tokens: list[int], repeats: int = 1) -> dict[str, Any]:
        """seconds[r]: time of one forward over all tokens with a cache; next: the greedy next token."""
        seconds, nxt = [], -1
        for _ in range(repeats):
            start = time.perf_counter()
            o = self._forward(tokens, use_cache=True)
            seconds.append(time.perf_counter() - start)
            nxt = int(o.logits[0, -1].argmax())
        return {"seconds": seconds, "next": nxt}


def _wanted(name: str, layers: list[int] | None) -> bool:
    numbers = [int(p) for p in name.split(".") if p.isdigit()]
    return layers is None or not numbers or numbers[0] in layers


def _rows(t: Any, rows: int) -> np.ndarray | None:
    """[1, T, F], [1, heads, T, d] or [1, T, heads, d] -> f32 [T, features]; None for anything else."""
    if t.dim() not in (3, 4) or t.shape[0] != 1 or not t.is_floating_point():
        return None
    t = t[0].float()
    if t.dim() == 3:
        if t.shape[0] == rows == t.shape[1]:
            raise ValueError(f"cannot tell heads from positions at {rows} tokens: use another length")
        t = t.transpose(0, 1) if t.shape[1] == rows else t
    return t.reshape(rows, -1).contiguous().numpy() if t.shape[0] == rows else None


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever a library prints goes to stderr: stdout carries answers only

    def answer(**fields: Any) -> None:
        print(json.dumps(fields), file=answers, flush=True)

    checkpoint, dtype, attn, threads = sys.argv[1:5]
    try:
        server = Server(checkpoint, dtype, attn, int(threads))
    except ImportError as e:
        return answer(ok=False, kind="missing", error=str(e))
    except Exception as e:  # noqa: BLE001 - reported to the client, which raises it
        return answer(ok=False, kind=type(e).__name__, error=str(e))
    answer(ok=True, **server.op_hello())
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer(ok=True, **getattr(server, f"op_{request.pop('op')}")(**request))
        except Exception as e:  # noqa: BLE001 - reported to the client, which raises it
            answer(ok=False, kind=type(e).__name__, error=str(e))


if __name__ == "__main__":
    main()

"""Golden files: what transformers computes, stored so that tests need no torch.

    python -m plow.oracle.goldens --check [NAME ...]     compare the files with a fresh run of transformers
    python -m plow.oracle.goldens --write [NAME ...]     make them again

`tiny-*` files hold float32 logits at every position of random texts and greedy tokens, for checkpoints that `tiny.py`
makes from a seed. `smollm2-135m` and `gemma3-270m` hold token ids of 20 prompts, 64 float32 greedy tokens each with
their margins, and logit slices; they bind to a checkpoint by its full digest.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from plow.checkpoint import Checkpoint
from plow.errors import CheckpointError, PlowError
from plow.oracle import metrics, tiny
from plow.oracle.client import HFOracle
from plow.oracle.prompts import CONTINUATIONS, PROMPTS

FOLDER = Path(__file__).with_name("goldens")
GREEDY_TOKENS = 64
SLICE = 48
"""Vocabulary ids kept of each stored logit row: the best 16, and 32 spread over the vocabulary."""
TOLERANCE = 1e-3
"""--check: largest logit difference between two runs of transformers in float32 (threads reorder sums)."""

MIN_MARGIN = 1e-3
"""Smallest top-1 minus top-2 logit of any greedy step of a real golden: ten times the measured difference of two
correct float32 implementations (1.1e-4). Below it the next token is a matter of summation order, not of correctness."""

_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
TINY: dict[str, tuple[dict[str, Any], int]] = {
    "tiny-llama": (tiny.LLAMA, 1),
    "tiny-gemma3": (tiny.GEMMA3, 2),
    "tiny-llama-bias-tied-llama3": (
        tiny.LLAMA
        | {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True, "rope_parameters": _LLAMA3},
        3,
    ),
    "tiny-mistral-window": (
        {k: v for k, v in tiny.LLAMA.items() if k not in ("attention_bias", "mlp_bias")}
        | {"model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": 6},
        4,
    ),
    "tiny-gemma3-softcap": (
        tiny.GEMMA3
        | {
            "final_logit_softcapping": 4.0,
            "attention_bias": True,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1000000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            },
        },
        5,
    ),
    "tiny-qwen3": (tiny.QWEN3, 6),
    "tiny-qwen3-untied": (
        {k: v for k, v in tiny.QWEN3.items() if k != "rope_parameters"}
        | {
            "tie_word_embeddings": False,
            "head_dim": 16,
            "num_key_value_heads": 1,
            "sliding_window": 6,
            "max_window_layers": 0,
            "rope_theta": 10000,
            "rope_scaling": None,
        },
        7,
    ),
}
"""name -> (config, seed). `tiny-llama`, `tiny-gemma3` and `tiny-qwen3` are the checkpoints of the test fixtures."""
TINY_LENGTHS = (1, 5, 33)
REAL = {"smollm2-135m": PROMPTS, "gemma3-270m": CONTINUATIONS}
SHORT = 4
"""Prompts of a real checkpoint whose logit slices are stored."""


@dataclass(frozen=True)
class TinyGolden:
    """texts: token ids; logits: f32 [len(text), vocab] each; greedy: 16 tokens after each text."""

    config: dict[str, Any]
    seed: int
    texts: list[list[int]]
    logits: list[np.ndarray]
    greedy: list[list[int]]


def load_tiny(name: str) -> TinyGolden:
    """Raises CheckpointError when the file is absent."""
    config, seed = TINY[name]
    with np.load(_path(f"{name}.npz")) as z:
        n = range(len(TINY_LENGTHS))
        return TinyGolden(
            config,
            seed,
            [z[f"text{i}"].tolist() for i in n],
            [z[f"logits{i}"] for i in n],
            [z[f"greedy{i}"].tolist() for i in n],
        )


def load_real(name: str) -> dict[str, Any]:
    """{"checkpoint": full digest, "prompts": [{"text", "ids", "greedy", "margins"}], "slices": [{"prompt", "rows": per
    position, "ids", "logits"}], "versions"}. Raises CheckpointError when the file is absent."""
    return json.loads(_path(f"{name}.json").read_text())


def _path(file: str) -> Path:
    path = FOLDER / file
    if not path.exists():
        raise CheckpointError(f"golden file {file} is absent", str(FOLDER), "python -m plow.oracle.goldens --write")
    return path


def make_tiny(name: str) -> dict[str, np.ndarray]:
    """Arrays of one tiny golden file, from transformers."""
    config, seed = TINY[name]
    rng = np.random.RandomState(100 + seed)
    arrays: dict[str, np.ndarray] = {}
    with tempfile.TemporaryDirectory() as tmp, HFOracle(tiny.write(Path(tmp) / name, config, seed)) as oracle:
        for i, length in enumerate(TINY_LENGTHS):
            text = [int(t) for t in rng.randint(4, config["vocab_size"], length)]
            arrays[f"text{i}"] = np.array(text, np.int32)
            arrays[f"logits{i}"] = oracle.logits(text)
            arrays[f"greedy{i}"] = np.array(oracle.greedy(text, 16).tokens, np.int32)
    return arrays


def make_real(name: str, checkpoint: Path) -> dict[str, Any]:
    """Contents of a real checkpoint's golden file, from transformers."""
    opened = Checkpoint.open(checkpoint)
    encode = encoder(opened)
    with HFOracle(checkpoint) as oracle:
        prompts: list[dict[str, Any]] = []
        for text in REAL[name]:
            ids = encode(text)
            greedy = oracle.greedy(ids, GREEDY_TOKENS)
            if min(greedy.margins) < MIN_MARGIN:
                raise CheckpointError(
                    f"the best two tokens are a tie in float32 (margin {min(greedy.margins):.1g}) after {text!r}",
                    name,
                    "choose another prompt in plow/oracle/prompts.py",
                )
            prompts.append(
                {"text": text, "ids": ids, "greedy": greedy.tokens, "margins": [round(m, 5) for m in greedy.margins]}
            )
            print(
                f"{name}: {len(prompts)}/{len(REAL[name])} smallest margin {min(greedy.margins):.4f}", file=sys.stderr
            )
        slices = [_slice(i, oracle.logits(p["ids"])) for i, p in enumerate(prompts[:SHORT])]
        return {
            "schema": "plow.golden/1",
            "checkpoint": opened.digest(full=True),
            "dtype": "float32",
            "versions": {k: oracle.info[k] for k in ("transformers", "torch")},
            "prompts": prompts,
            "slices": slices,
        }


def _slice(prompt: int, logits: np.ndarray) -> dict[str, Any]:
    """The first and last position's logits at the last one's best ids and at ids spread over the vocabulary."""
    best = np.argsort(-logits[-1], kind="stable")[:16]
    spread = np.linspace(0, logits.shape[1] - 1, SLICE - len(best)).astype(int)
    ids, rows = np.concatenate([best, spread]).tolist(), [0, logits.shape[0] - 1]
    return {
        "prompt": prompt,
        "rows": rows,
        "ids": ids,
        "logits": [[round(float(x), 6) for x in logits[r, ids]] for r in rows],
    }


def encoder(checkpoint: Checkpoint) -> Callable[[str], list[int]]:
    """text -> token ids of one user turn where tokenizer_config.json has a chat template, of the plain text (with what
    the tokenizer itself adds) where it has none."""
    import jinja2.sandbox

    tokenizer = Tokenizer.from_file(str(checkpoint.path / "tokenizer.json"))
    config = json.loads((checkpoint.path / "tokenizer_config.json").read_text())
    source = config.get("chat_template")
    if not source:
        return lambda text: tokenizer.encode(text).ids
    template = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True).from_string(source)

    def chat(text: str) -> list[int]:
        rendered = template.render(
            messages=[{"role": "user", "content": text}],
            add_generation_prompt=True,
            bos_token=config.get("bos_token"),
            eos_token=config.get("eos_token"),
        )
        return tokenizer.encode(rendered, add_special_tokens=False).ids

    return chat


def differences(name: str, demo: Path) -> list[str]:
    """Lines that say where the stored golden file and a fresh run differ; empty when they agree."""
    if name in TINY:
        fresh = make_tiny(name)
        with np.load(_path(f"{name}.npz")) as z:
            stored = dict(z)
        return [key for key in sorted(fresh.keys() | stored.keys()) if not _same(stored.get(key), fresh.get(key))]
    stored_real, fresh_real = load_real(name), make_real(name, demo / name)
    found = [] if stored_real["checkpoint"] == fresh_real["checkpoint"] else ["checkpoint digest"]
    for a, b in zip(stored_real["prompts"], fresh_real["prompts"], strict=True):
        found += [f"{key} of {a['text']!r}" for key in ("text", "ids", "greedy") if a[key] != b[key]]
    for a, b in zip(stored_real["slices"], fresh_real["slices"], strict=True):
        if metrics.max_abs_error(np.array(a["logits"]), np.array(b["logits"])) > TOLERANCE:
            found.append(f"logits of prompt {a['prompt']}")
    return found


def _same(a: np.ndarray | None, b: np.ndarray | None) -> bool:
    if a is None or b is None or a.shape != b.shape:
        return False
    return metrics.max_abs_error(a, b) <= (TOLERANCE if a.dtype == np.float32 else 0.0)


def write(name: str, demo: Path) -> Path:
    FOLDER.mkdir(exist_ok=True)
    if name in TINY:
        path = FOLDER / f"{name}.npz"
        np.savez_compressed(path, **make_tiny(name))  # type: ignore[arg-type]
    else:
        path = FOLDER / f"{name}.json"
        data = make_real(name, demo / name)
        lists = {
            key: "[\n" + ",\n".join(json.dumps(x, ensure_ascii=False) for x in data[key]) + "\n]"
            for key in ("prompts", "slices")
        }
        head = json.dumps({k: v for k, v in data.items() if k not in lists})[:-1]
        path.write_text(head + "".join(f',\n"{k}": {v}' for k, v in lists.items()) + "}\n")
    return path


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m plow.oracle.goldens", description=(__doc__ or "").splitlines()[0])
    mode = parser.add_mutually_exclusive_group(required=True)
    mode.add_argument("--write", action="store_true")
    mode.add_argument("--check", action="store_true")
    parser.add_argument("names", nargs="*", help=f"default: all of {', '.join([*TINY, *REAL])}")
    parser.add_argument("--demo", type=Path, default=Path(".demo"), help="folder of the real checkpoints")
    args = parser.parse_args(argv)
    bad = 0
    try:
        for name in args.names or [*TINY, *REAL]:
            if name not in TINY and name not in REAL:
                raise CheckpointError(f"no golden file {name!r}", "goldens", f"known: {', '.join([*TINY, *REAL])}")
            if args.write:
                print(write(name, args.demo))
                continue
            found = differences(name, args.demo)
            bad += bool(found)
            print(f"{name}: {'equal' if not found else 'differs in ' + ', '.join(found)}")
    except PlowError as e:
        print(f"error: {e.line()}", file=sys.stderr)
        return e.exit_code
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())

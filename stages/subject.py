"""What the gates of several stages need of a checkpoint: prompts, step inputs, seeds, and its first layers alone."""

from __future__ import annotations

import json
import secrets
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer

from plow.checkpoint import Checkpoint
from plow.errors import CheckpointError
from plow.graph import Graph
from stages.base import StageContext

PROMPTS = (
    "The capital of France is",
    "Once upon a time, in a small village by the sea, there lived",
    "def fibonacci(n):\n    ",
    "Water boils at 100 degrees Celsius because",
)
LAYER = "model.layers."
VOCABULARY = ("model.embed_tokens.weight", "lm_head.weight")
"""Tensors with a row a token."""
TOKEN_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")
PER_LAYER_PATTERNS = ("sliding_window_pattern", "_sliding_window_pattern")


def seed_of(ctx: StageContext) -> int:
    """Fresh for every run, so that nothing can be prepared for it; `--set seed=N` repeats one."""
    return int(ctx.params.get("seed", secrets.randbelow(2**31)))


def repeat(ctx: StageContext, stage: int, check: str, seed: int | None = None) -> str:
    """The command that measures one check again."""
    parts = [
        "python",
        "-m",
        "stages.repeat",
        str(stage),
        "--checkpoint",
        str(ctx.checkpoint),
        "--target",
        ctx.target,
        "--check",
        check,
    ]
    return shlex.join(parts if seed is None else [*parts, "--seed", str(seed)])


class Widened(Mapping[str, np.ndarray]):
    """Weights as float32 arrays that are widened once; `rename` maps a graph's weight name to the stored one."""

    def __init__(self, stored: Mapping[str, np.ndarray], rename: Mapping[str, str] | None = None) -> None:
        self.stored, self.rename = stored, rename or {}
        self.cache: dict[str, np.ndarray] = {}

    def __getitem__(self, name: str) -> np.ndarray:
        key = self.rename.get(name, name)
        if key not in self.cache:
            self.cache[key] = np.asarray(self.stored[key]).astype(np.float32)
        return self.cache[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.stored)

    def __len__(self) -> int:
        return len(self.stored)


def step_inputs(tokens: Sequence[int], start: int = 0, rows: Sequence[int] | None = None) -> dict[str, np.ndarray]:
    """Inputs of a step that processes `tokens` of one sequence from position `start`; rows: which are sampled (all)."""
    n = len(tokens)
    return {
        "tokens": np.asarray(tokens, np.int32),
        "positions": np.arange(start, start + n, dtype=np.int32),
        "slots": np.zeros(n, np.int32),
        "sample_rows": np.asarray(range(n) if rows is None else rows, np.int32),
    }


def random_tokens(rng: np.random.Generator, checkpoint: Checkpoint, count: int) -> list[int]:
    """Uniform over the ids that a tokenizer can produce."""
    size = min(checkpoint.config["vocab_size"], checkpoint.tokenizer_size or checkpoint.config["vocab_size"])
    return [int(t) for t in rng.integers(0, size, count)]


def encode_prompts(checkpoint: Checkpoint, rng: np.random.Generator) -> list[list[int]]:
    """PROMPTS as token ids; random ones of about their length for a checkpoint without tokenizer.json."""
    path = checkpoint.path / "tokenizer.json"
    if not path.exists():
        return [random_tokens(rng, checkpoint, len(p) // 4 + 1) for p in PROMPTS]
    tokenizer = Tokenizer.from_file(str(path))
    return [tokenizer.encode(p).ids for p in PROMPTS]


def kinds_of_layers(graph: Graph) -> list[int]:
    """The first layer of every kind (same operators, same attributes); the second layer too where all are alike."""
    first: dict[str, int] = {}
    for scope, nodes in graph.scopes():
        if scope.startswith("layer."):
            kind = repr([(n.op, sorted((k, repr(v)) for k, v in n.attrs.items() if k != "cache")) for n in nodes])
            first.setdefault(kind, int(scope.removeprefix("layer.")))
    chosen = sorted(first.values())
    return chosen if len(chosen) > 1 else list(range(min(2, graph.meta["num_layers"])))


def truncated_config(config: dict[str, Any], graph: Graph, layers: Sequence[int]) -> dict[str, Any]:
    """config.json of a model that has only these layers, in this order. graph: what `config` builds."""
    short = {k: v for k, v in config.items() if k not in PER_LAYER_PATTERNS} | {"num_hidden_layers": len(layers)}
    pattern = next((config[k] for k in PER_LAYER_PATTERNS if config.get(k) is not None), None)
    if config.get("layer_types") is not None:
        short["layer_types"] = [config["layer_types"][i] for i in layers]
    elif pattern is not None:
        windows = [graph.meta["caches"][i]["window"] for i in layers]
        short["layer_types"] = ["sliding_attention" if w else "full_attention" for w in windows]
    return short


def truncated_names(weights: Sequence[str], layers: Sequence[int]) -> dict[str, str]:
    """Weight name in the truncated model -> name in the checkpoint, for the given names of the checkpoint."""
    new = {old: i for i, old in enumerate(layers)}
    names = {}
    for name in weights:
        if not name.startswith(LAYER):
            names[name] = name
            continue
        number, _, rest = name.removeprefix(LAYER).partition(".")
        if int(number) in new:
            names[f"{LAYER}{new[int(number)]}.{rest}"] = name
    return names


def truncate(checkpoint: Checkpoint, graph: Graph, layers: Sequence[int], out: Path, vocab: int = 0) -> Path:
    """Write a Hugging Face directory with these layers' real weights between embedding and head; returns `out`.

    vocab: keep only the first ids (0 = all); the directory then has no tokenizer, whose ids it could not hold.
    Raises CheckpointError when the tensors do not carry layer numbers.
    """
    config = truncated_config(checkpoint.config, graph, layers)
    names = truncated_names(list(checkpoint.tensors), layers)
    if not any(n.startswith(f"{LAYER}{len(layers) - 1}.") for n in names):
        raise CheckpointError(f"no tensor of layer {layers[-1]}", str(checkpoint.path), f"names must start {LAYER}N.")
    tensors = {new: np.array(checkpoint.tensor(old)) for new, old in names.items()}
    if 0 < vocab < config["vocab_size"]:
        tensors = {n: np.array(t[:vocab]) if n in VOCABULARY else t for n, t in tensors.items()}
        config = {k: v for k, v in config.items() if k not in TOKEN_IDS} | {"vocab_size": vocab}
    out.mkdir(parents=True)
    save_file(tensors, out / "model.safetensors", {"format": "pt"})
    (out / "config.json").write_text(json.dumps(config, indent=1))
    for file in checkpoint.tokenizer_files if not vocab else []:
        (out / file.name).write_bytes(file.read_bytes())
    return out

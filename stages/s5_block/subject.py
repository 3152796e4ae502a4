"""What stage 5 judges: one layer of every kind with its real weights, compiled, beside the graph it came from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from plow.checkpoint import Checkpoint
from plow.compile import Options, compile_checkpoint, lower
from plow.graph import Graph
from plow.models import build
from plow.runtime.bundle import Bundle, load
from plow.tune.choices import apply_tuned
from stages.base import Check, StageContext, Thresholds
from stages.bundles import tune_database
from stages.subject import kinds_of_layers, repeat, seed_of, truncate

STAGE = 5
VOCAB = 4096
"""Ids of the truncated model: the head is not the subject, and its cost hides the block's."""
ROWS = (1, 2, 8, 64)
BATCHES = (1, 2, 8)
MAX_BATCH = 8
CONTEXTS = (1, 15, 16, 17, 33, 130)
"""Positions that the decoded row sees: one, both sides of a page of 16 and of a tile of 32, and several pages."""
BEYOND = 5
"""Positions beyond the widest window."""
LONGEST = 1100
"""A window above this is not crossed: its edge is then tested by the numpy interpreter's own tests only."""


@dataclass
class Subject:
    """path: the truncated checkpoint; graph: base operators; fused: what its programs were emitted from."""

    ctx: StageContext
    path: Path
    graph: Graph
    fused: Graph
    bundle: Bundle
    thresholds: Thresholds
    layers: list[int]
    seed: int

    @classmethod
    def open(cls, ctx: StageContext) -> Subject:
        """Truncate and compile. Raises the typed errors of both."""
        whole = Checkpoint.open(ctx.checkpoint)
        graph = build(whole.config)
        layers = kinds_of_layers(graph)
        path = truncate(whole, graph, layers, ctx.workdir / "short", min(VOCAB, graph.meta["vocab_size"]))
        return cls.compiled(ctx, path, layers)

    @classmethod
    def compiled(cls, ctx: StageContext, path: Path, layers: list[int]) -> Subject:
        checkpoint = Checkpoint.open(path)
        graph = build(checkpoint.config)
        out = ctx.workdir / "bundle"
        options = options_for(ctx, graph, ROWS)
        compile_checkpoint(path, out, options)
        fused = lower(graph, options, graph.meta["vocab_size"]).graph
        thresholds = Thresholds.load(Path(__file__).with_name("thresholds.toml"), ctx.target)
        return cls(ctx, path, graph, fused, load(out, allow_uncertified=True), thresholds, layers, seed_of(ctx))

    @property
    def contexts(self) -> list[int]:
        return contexts_of(self.graph)

    def tokens(self) -> np.ndarray:
        """i32 [MAX_BATCH, longest context]: a sequence a slot."""
        rng = np.random.default_rng(self.seed)
        return rng.integers(0, self.graph.meta["vocab_size"], (MAX_BATCH, max(self.contexts))).astype(np.int32)

    def limit(self, name: str) -> float:
        return float(self.thresholds[name].threshold or 0)

    def check(self, name: str, measured: Any, detail: str = "") -> Check:
        return self.thresholds.check(name, measured, repeat(self.ctx, STAGE, name, self.seed), detail)


def contexts_of(graph: Graph) -> list[int]:
    window = max((n.attrs.get("window", 0) for n in graph.nodes), default=0)
    longest = min(graph.meta["max_position_embeddings"], LONGEST)
    beyond = [window + BEYOND] if window else []
    return sorted({c for c in (*CONTEXTS, *beyond) if c <= longest})


def options_for(ctx: StageContext, graph: Graph, rows: tuple[int, ...]) -> Options:
    """The choices that stage 4 made, on programs for these rows and contexts."""
    longest = min(graph.meta["max_position_embeddings"], max(contexts_of(graph)) + 64)
    options = Options(rows=rows, max_batch=MAX_BATCH, max_ctx=longest)
    if tune_database(ctx).exists():
        apply_tuned(options, tune_database(ctx))
    return options

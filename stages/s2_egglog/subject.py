"""What stage 2 judges: a graph, what the compiler's rewrite made of it, and what the emitter then emitted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plow.checkpoint import Checkpoint
from plow.compile import Options, lower
from plow.graph import Graph
from plow.models import build
from plow.rewrite import Rewritten
from stages.base import Check, StageContext, Thresholds
from stages.subject import Widened, kinds_of_layers, repeat, seed_of, truncated_config, truncated_names

STAGE = 2
MAX_CTX = 2048


@dataclass(frozen=True)
class Compiled:
    """emitted: names of the nodes that the compiler gave packets to, in order."""

    rewritten: Rewritten
    emitted: list[str]


def compile_graph(graph: Graph) -> Compiled:
    """The compiler's own path, for one row; every size of program is emitted from the same graph."""
    options = Options(rows=(1,), max_ctx=min(MAX_CTX, graph.meta["max_position_embeddings"]))
    compiled = lower(graph, options, valid_vocab=graph.meta["vocab_size"])
    return Compiled(compiled.rewritten, list(compiled.packets.header["nodes"]))


@dataclass
class Subject:
    """store: where the explanation goes. compile: the step under judgement (a planted fault puts a wrong one here)."""

    ctx: StageContext
    checkpoint: Checkpoint
    graph: Graph
    thresholds: Thresholds
    store: Path
    seed: int
    compile: Callable[[Graph], Compiled] = compile_graph

    @classmethod
    def open(cls, ctx: StageContext, store: Path, compile: Callable[[Graph], Compiled] = compile_graph) -> Subject:
        """Raises CheckpointError, ConfigError or GraphError for a checkpoint without a graph."""
        checkpoint = Checkpoint.open(ctx.checkpoint)
        thresholds = Thresholds.load(Path(__file__).with_name("thresholds.toml"), ctx.target)
        return cls(ctx, checkpoint, build(checkpoint.config), thresholds, store, seed_of(ctx), compile)

    def truncated(self) -> tuple[Graph, Widened]:
        """One layer of every kind between embedding and head, with its real weights."""
        layers = kinds_of_layers(self.graph)
        names = truncated_names(list(self.checkpoint.tensors), layers)
        stored = {old: self.checkpoint.tensor(old) for old in names.values()}
        return build(truncated_config(self.checkpoint.config, self.graph, layers)), Widened(stored, names)

    def check(self, name: str, measured: Any, detail: str = "") -> Check:
        return self.thresholds.check(name, measured, repeat(self.ctx, STAGE, name, self.seed), detail)

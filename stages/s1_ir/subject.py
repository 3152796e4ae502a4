"""What stage 1 judges: a checkpoint, the graph that the families make of it, and an oracle that never saw this code."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from plow.checkpoint import Checkpoint
from plow.graph import Graph
from plow.models import build
from plow.oracle.client import Greedy
from stages.base import Check, Measured, StageContext, Thresholds
from stages.subject import Widened, repeat, seed_of

STAGE = 1
POINTWISE, DOT = "operator_error_pointwise", "operator_error_dot"
DOT_OPS = ("linear", "attention")


class Oracle(Protocol):
    """The part of plow.oracle.HFOracle that this stage asks."""

    def logits(self, tokens: list[int], rows: list[int] | None = None) -> np.ndarray: ...
    def greedy(self, tokens: list[int], count: int) -> Greedy: ...
    def capture(self, tokens: list[int], layers: list[int] | None = None) -> dict[str, np.ndarray]: ...
    def attributes(self) -> dict[str, dict[str, Any]]: ...


@dataclass
class Subject:
    """build: config.json -> graph; graph: of this checkpoint's config (a planted fault puts a wrong one here)."""

    ctx: StageContext
    checkpoint: Checkpoint
    graph: Graph
    thresholds: Thresholds
    seed: int
    build: Callable[[dict[str, Any]], Graph] = build
    stored: Mapping[str, np.ndarray] = field(init=False)

    def __post_init__(self) -> None:
        self.stored = _Tensors(self.checkpoint)
        self.rng = np.random.default_rng(self.seed)

    @classmethod
    def open(cls, ctx: StageContext, build: Callable[[dict[str, Any]], Graph] = build) -> Subject:
        """Raises CheckpointError, ConfigError or GraphError for a checkpoint without a graph."""
        checkpoint = Checkpoint.open(ctx.checkpoint)
        thresholds = Thresholds.load(Path(__file__).with_name("thresholds.toml"), ctx.target)
        return cls(ctx, checkpoint, build(checkpoint.config), thresholds, seed_of(ctx), build)

    @cached_property
    def weights(self) -> Widened:
        return Widened(self.stored)

    @property
    def window(self) -> int:
        """The widest attention window, 0 without one."""
        return max((n.attrs.get("window", 0) for n in self.graph.nodes), default=0)

    def limit(self, name: str) -> float:
        return float(self.thresholds[name].threshold or 0)

    def operator_limits(self) -> dict[str, float]:
        """op -> tolerance of its result beside the oracle's."""
        return {n.op: self.limit(DOT if n.op in DOT_OPS else POINTWISE) for n in self.graph.nodes}

    def check(self, name: str, measured: Measured | Any, detail: str = "") -> Check:
        return self.thresholds.check(name, measured, repeat(self.ctx, STAGE, name, self.seed), detail)


class _Tensors(Mapping[str, np.ndarray]):
    """All tensors of the checkpoint, whether the graph knows them or not."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint

    def __getitem__(self, name: str) -> np.ndarray:
        return self.checkpoint.tensor(name)

    def __iter__(self) -> Any:
        return iter(self.checkpoint.tensors)

    def __len__(self) -> int:
        return len(self.checkpoint.tensors)

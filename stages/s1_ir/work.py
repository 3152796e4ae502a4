"""Work of stage 1: build the graph and leave it as text for the people and agents of later stages."""

from __future__ import annotations

from plow.checkpoint import Checkpoint
from plow.models import build, check_weights
from stages.base import Progress, StageContext


def work(ctx: StageContext, progress: Progress) -> None:
    """Writes artifacts/graph.txt. Raises the typed error of what is missing: a config field, a tensor, a family."""
    progress("open checkpoint", 0.0)
    checkpoint = Checkpoint.open(ctx.checkpoint)
    progress(f"build {checkpoint.config.get('model_type')}", 0.2)
    graph = build(checkpoint.config)
    check_weights(graph, checkpoint)
    ctx.artifacts.mkdir(parents=True, exist_ok=True)
    (ctx.artifacts / "graph.txt").write_text(f"{graph}\n")
    progress(f"{len(graph.nodes)} operators, {len(graph.weights)} weights", 1.0)

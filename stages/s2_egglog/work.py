"""Work of stage 2: rewrite as the compiler does and leave the explanation for people and agents."""

from __future__ import annotations

from plow.checkpoint import Checkpoint
from plow.models import build
from stages.base import Progress, StageContext
from stages.s2_egglog.explain import store
from stages.s2_egglog.subject import compile_graph


def work(ctx: StageContext, progress: Progress) -> None:
    """Writes artifacts/rewrite.json, rewrite.txt and rewrite.egg."""
    progress("build the graph", 0.0)
    graph = build(Checkpoint.open(ctx.checkpoint).config)
    progress("saturate and extract", 0.2)
    rewritten = compile_graph(graph).rewritten
    store(rewritten, ctx.artifacts)
    progress(f"{len(graph.nodes)} operators became {len(rewritten.graph.nodes)}", 1.0)

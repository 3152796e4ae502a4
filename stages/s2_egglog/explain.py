"""The explanation of a rewrite as a stored file: which rules made which operator of what, and nothing left out."""

from __future__ import annotations

import json
from pathlib import Path

from plow.graph import OPS, Graph
from plow.rewrite import BlockReport, Rewritten
from plow.rewrite.report import as_dict, render

FILES = ("rewrite.json", "rewrite.txt", "rewrite.egg")


def unexplained(graph: Graph, rewritten: Rewritten) -> list[str]:
    """Nodes of either graph that the reports do not account for.

    A fused operator needs a fusion with its rules; an operator of the original graph must be kept or covered; every
    scope must belong to one report.
    """
    scopes = [scope for b in rewritten.blocks for scope in b.scopes]
    left = [f"scope {s}" for s, _ in graph.scopes() if scopes.count(s) != 1]
    before, after = dict(graph.scopes()), dict(rewritten.graph.scopes())
    for block in rewritten.blocks:
        first = block.scopes[0]
        left += _of_block(
            block, {n.name: n.op for n in before.get(first, [])}, {n.name: n.op for n in after.get(first, [])}
        )
        left += [
            f"scope {s} is not like {first}"
            for s in block.scopes
            if [n.op for n in after.get(s, [])] != [n.op for n in after.get(first, [])]
        ]
    return left


def _of_block(block: BlockReport, before: dict[str, str], after: dict[str, str]) -> list[str]:
    fusions = {f.node: f for f in block.fusions if f.rules and f.covers}
    covered = {name for f in fusions.values() for name in f.covers}
    kept = {name for name, op in after.items() if name not in fusions and before.get(name) == op}
    found = [name for name, op in after.items() if OPS[op].fused and (name not in fusions or fusions[name].op != op)]
    return found + [name for name in before if name not in covered | kept]


def store(rewritten: Rewritten, folder: Path) -> dict[str, int]:
    """Write FILES into `folder`; returns name -> bytes as read back from the disk."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = (json.dumps(as_dict(rewritten), indent=1), render(rewritten) + "\n", rewritten.egglog_text)
    for name, text in zip(FILES, texts, strict=True):
        (folder / name).write_text(text)
    return {name: len((folder / name).read_bytes()) for name in FILES}

"""docs/gpu-speed.md: decode speed on the GPU, from the lines of perf-data/h200/decode.jsonl."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

Line = dict[str, Any]
Table = Callable[[Iterable[str], Iterable[Iterable[object]]], str]
SOURCE = "perf-data/h200/decode.jsonl"
OURS = "plow"
INTRO = """# Decode speed on the H200

One NVIDIA H200; greedy; shape bundles (random weights of the model's shape). ctx is the mean context, ms the median
over rounds of one launch of many steps. The ceiling is a streaming read in the same run: cards differ by 4 %, so shares
compare better than times. Bytes are weights plus keys and values. Of every shape the newest measurement is shown; older
ones and all rounds are in `{source}`.

    plowc --config CONFIG.json --synthetic 1 --gpu h200 --max-ctx 1024 --rows 1,8 --verify off --out BUNDLE
    PYTHONPATH=. python stages/s7_campaign/h200.py BUNDLE --steps 200
"""
PEERS = """## Beside peers

Same weights' shape, same process, interleaved rounds; every peer's logits are checked against fp32 before it is timed.

    PYTHONPATH=. python stages/s7_campaign/peers.py BUNDLE --config CONFIG.json --batch 1 --context 512
"""


def newest(lines: Iterable[Line], key: Callable[[Line], Any]) -> dict[Any, Line]:
    """The valid line with the latest date for each key."""
    found: dict[Any, Line] = {}
    for line in sorted((x for x in lines if x["valid"]), key=lambda x: str(x["date"])):
        found[key(line)] = line
    return found


def _shape(line: Line) -> tuple[str, int, int]:
    return str(line["model"]), int(line["ctx"]), int(line["batch"])


def speed_rows(lines: list[Line]) -> list[list[object]]:
    """[model, batch, ctx, ms, percent of the ceiling, ceiling GB/s, ratio to batch 1, date] of our own lines."""
    ours = newest((x for x in lines if x["arm"] == OURS), _shape)
    rows: list[list[object]] = []
    for (model, ctx, batch), x in sorted(ours.items()):
        one = ours.get((model, ctx, 1))
        over = f"{x['ms'] / one['ms']:.2f}" if one and batch > 1 else ""
        rows.append([model, batch, f"{ctx:,}", f"{x['ms']:.3f}", f"{x['pct_of_ceiling']:.1f} %", x["ceiling_gbs"], over,
                     str(x["date"])[:10]])  # fmt: skip
    return rows


def peer_rows(lines: list[Line]) -> list[list[object]]:
    """[model, batch, ctx, arm, ms, ours of the same run, ratio] of the peers' lines."""
    peers = newest((x for x in lines if x["arm"] != OURS), lambda x: (*_shape(x), x["arm"]))
    ours = {(*_shape(x), x["date"]): x for x in lines if x["arm"] == OURS}
    rows: list[list[object]] = []
    for (model, ctx, batch, arm), x in sorted(peers.items()):
        mine = ours.get((model, ctx, batch, x["date"]))
        if mine:
            times = f"{x['ms']:.3f}", f"{mine['ms']:.3f}", f"{x['ms'] / mine['ms']:.2f}"
            rows.append([model, batch, f"{ctx:,}", arm, *times])
    return rows


def speed_page(root: Path, header: str, table: Table) -> str:
    lines = [json.loads(x) for x in (root / SOURCE).read_text("utf-8").splitlines()]
    speed = table(["model", "batch", "ctx", "ms a step", "of the ceiling", "ceiling GB/s", "over batch 1", "date"],
                  speed_rows(lines))  # fmt: skip
    peers = table(["model", "batch", "ctx", "peer", "its ms", "ours", "ratio"], peer_rows(lines))
    return "\n".join([header.format(source=SOURCE), INTRO.format(source=SOURCE), speed, PEERS, peers])

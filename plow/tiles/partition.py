"""The cut of a form into tiles: balanced shares of rows, units or heads for the workers."""

from __future__ import annotations

from dataclasses import dataclass

from plow.packet.abi import Opcode
from plow.tiles.forms import Form

ROW_SPLIT_ATTENTION = 2
"""Rows a worker from which attention is cut by rows instead of heads (interleaved, so causal lengths balance)."""
ROW_SPLIT_PROJECTION = 32
"""Rows a worker from which projections are cut by rows too. Each worker then reads every weight, which costs bandwidth
that long steps do not need (they are bound by arithmetic), and in return normalises and packs only its own rows,
depends only on its own rows between attentions, and is balanced whatever the number of units or heads."""


@dataclass(frozen=True)
class Tile:
    """One packet's share of a form. axis0..axis1: units or heads; rows row0, row0 + row_step, ... < row1."""

    worker: int
    row0: int
    row1: int
    row_step: int
    axis0: int = 0
    axis1: int = 1


def partition(form: Form, rows: int, workers: int, home: int = 0) -> list[Tile]:
    """Tiles of a form for a program with `rows` rows of its domain.

    Projections are cut by units (heads for qkv) while rows are few, so that every weight is streamed once by one
    worker; row operators by interleaved rows; attention by heads while rows are few. home: the worker that takes a form
    with one tile. No worker has more than ceil(extent / workers) of what is cut.
    """
    least = ROW_SPLIT_ATTENTION if form.opcode == Opcode.ATTENTION else ROW_SPLIT_PROJECTION
    if form.axis and rows >= least * workers:
        return _by_rows(rows, workers, form.extent)
    if form.axis:
        shares = [(form.extent * w // workers, form.extent * (w + 1) // workers) for w in range(workers)]
        return [Tile(w, 0, rows, 1, a, b) for w, (a, b) in enumerate(shares) if b > a]
    if rows == 1:
        return [Tile(home, 0, 1, 1, 0, form.extent)]
    return _by_rows(rows, workers, form.extent)


def _by_rows(rows: int, workers: int, extent: int) -> list[Tile]:
    return [Tile(w, w, rows, workers, 0, extent) for w in range(min(workers, rows))]

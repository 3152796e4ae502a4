"""The cut of forms: complete, disjoint, balanced."""

from __future__ import annotations

import pytest

from plow.graph.ir import Node
from plow.packet.abi import Opcode
from plow.tiles.forms import Form
from plow.tiles.partition import ROW_SPLIT_PROJECTION, partition

NODE = Node("n", "linear", (), ())


def form(opcode: Opcode, axis: str, extent: int) -> Form:
    return Form(NODE, opcode, {}, axis=axis, extent=extent)


def cells(tiles: list, extent: int) -> list[tuple[int, int]]:
    return sorted((r, a) for t in tiles for r in range(t.row0, t.row1, t.row_step) for a in range(t.axis0, t.axis1))


@pytest.mark.parametrize(
    "opcode, axis", [(Opcode.LINEAR, "unit"), (Opcode.QKV, "head"), (Opcode.ATTENTION, "head"), (Opcode.NORM, "")]
)
@pytest.mark.parametrize("rows", [1, 2, 3, 8, 64, 512])
@pytest.mark.parametrize("workers", [1, 2, 3, 7])
def test_every_row_and_unit_is_covered_exactly_once(opcode: Opcode, axis: str, rows: int, workers: int) -> None:
    extent = 15 if axis else 1
    tiles = partition(form(opcode, axis, extent), rows, workers)
    assert cells(tiles, extent) == [(r, a) for r in range(rows) for a in range(extent)]
    assert all(0 <= t.worker < workers for t in tiles) and len({t.worker for t in tiles}) == len(tiles)


@pytest.mark.parametrize("workers", [2, 3, 5])
def test_no_worker_has_more_than_its_share(workers: int) -> None:
    few = partition(form(Opcode.LINEAR, "unit", 18), 4, workers)
    assert max(t.axis1 - t.axis0 for t in few) <= -(-18 // workers)
    many = partition(form(Opcode.LINEAR, "unit", 18), 512, workers)
    assert max(len(range(t.row0, t.row1, t.row_step)) for t in many) <= -(-512 // workers)


def test_projections_are_cut_by_units_while_rows_are_few_and_by_rows_when_they_are_many() -> None:
    few = partition(form(Opcode.LINEAR, "unit", 18), 2 * ROW_SPLIT_PROJECTION - 1, 2)
    many = partition(form(Opcode.LINEAR, "unit", 18), 2 * ROW_SPLIT_PROJECTION, 2)
    assert few[0].axis1 == 9 and few[0].row_step == 1 and many[0].axis1 == 18 and many[0].row_step == 2

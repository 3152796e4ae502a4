"""Pages that list things say what the code says."""

from __future__ import annotations

from pathlib import Path

import pytest

from plow.cli import docs
from plow.graph.ops import OPS
from plow.packet.abi import OPCODES
from plow.rewrite import RULES


@pytest.mark.parametrize("page", docs.PAGES)
def test_generated_page_is_fresh(page: str) -> None:
    assert (docs.ROOT / page).read_text("utf-8") == docs.PAGES[page](), "run `make docs`"


def test_an_edited_or_missing_page_is_stale(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    for page, text in docs.PAGES.items():
        (tmp_path / page).write_text(text(), "utf-8")
    assert docs.stale(tmp_path) == []
    first, second, *_ = docs.PAGES
    (tmp_path / first).write_text("edited by hand", "utf-8")
    (tmp_path / second).unlink()
    assert docs.stale(tmp_path) == [first, second]


def test_every_opcode_operator_and_rule_has_a_section() -> None:
    abi, ops, rules = docs.packet_abi(), docs.ops(), docs.rules()
    assert all(f"### {name} (" in rules for name in RULES)
    assert all(f"### {int(o)} {o.name}\n" in abi for o in OPCODES)
    assert all(f"### {name}\n" in ops for name in OPS)


def test_table_cells_cannot_break_the_table() -> None:
    assert docs.table(["a"], [["x|y\nz"]]).splitlines()[-1] == "| x\\|y z |"

"""Pages that list things say what the code says."""

from __future__ import annotations

from pathlib import Path

import pytest

from plow.cli import docs
from plow.cli.speed_page import peer_rows, speed_rows
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


def line(arm: str, ms: float, date: str, batch: int = 1, valid: bool = True) -> dict[str, object]:
    return {"arm": arm, "model": "m", "batch": batch, "ctx": 512, "ms": ms, "pct_of_ceiling": 90.0, "ceiling_gbs": 4500,
            "date": date, "valid": valid}  # fmt: skip


def test_the_speed_page_shows_the_newest_valid_line_and_peers_of_one_run() -> None:
    lines = [
        line("plow", 0.5, "2026-02-01"),
        line("plow", 0.7, "2026-01-01"),
        line("plow", 0.1, "2026-03-01", valid=False),
        line("plow", 0.6, "2026-02-01", batch=8),
        line("triton", 0.8, "2026-01-01"),
        line("torch", 0.9, "2026-01-09"),
    ]
    shown = [r[:4] + r[6:7] for r in speed_rows(lines)]
    assert shown == [["m", 1, "512", "0.500", ""], ["m", 8, "512", "0.600", "1.20"]]
    assert peer_rows(lines) == [["m", 1, "512", "triton", "0.800", "0.700", "1.14"]], "ours of another run is no ratio"


def test_table_cells_cannot_break_the_table() -> None:
    assert docs.table(["a"], [["x|y\nz"]]).splitlines()[-1] == "| x\\|y z |"

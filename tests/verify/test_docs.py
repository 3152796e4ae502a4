"""docs/verification.md lists what the code lists."""

from __future__ import annotations

from pathlib import Path

from plow.verify.checkpoint import ALLOWED_AXIOMS
from plow.verify.registry import CHECKPOINTS
from plow.verify.selftest import MUTATIONS

PAGE = (Path(__file__).parents[2] / "docs" / "verification.md").read_text(encoding="utf-8")


def test_every_checkpoint_is_listed_with_its_claim_and_state() -> None:
    rows = [[cell.strip(" *") for cell in line.split("|")[1:-1]] for line in PAGE.splitlines() if line.startswith("|")]
    for c in CHECKPOINTS.values():
        assert [c.letter, c.title, "certified" if c.build else "not run", c.claim] in rows


def test_every_certified_theorem_and_allowed_axiom_is_named() -> None:
    for c in CHECKPOINTS.values():
        assert c.theorem in PAGE
    assert all(f"`{axiom}`" in PAGE for axiom in ALLOWED_AXIOMS)


def test_the_number_of_planted_faults_is_the_real_one() -> None:
    assert f"{len(MUTATIONS)} corrupted payloads" in PAGE

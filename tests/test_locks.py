"""The lock files pin every package by version and hash, agree with pyproject.toml, and name no index."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
LOCKS = sorted(ROOT.glob("requirements*.lock"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


def entries(text: str) -> dict[str, str]:
    """Requirement line -> its hash lines, joined."""
    found: dict[str, str] = {}
    for block in re.split(r"\n(?=\S)", text.strip()):
        head, _, hashes = block.partition("\\")
        found[head.strip()] = hashes
    return found


def pins(path: Path) -> dict[str, str]:
    """Package name -> version. Raises AssertionError for a line that is not `name==version` with sha256 hashes."""
    versions = {}
    for head, hashes in entries(path.read_text("utf-8")).items():
        requirement = Requirement(head)
        (spec,) = requirement.specifier
        assert spec.operator == "==" and "*" not in spec.version, head
        assert requirement.url is None and re.fullmatch(r"(\s*--hash=sha256:[0-9a-f]{64}\s*\\?)+", hashes), head
        versions[requirement.name.lower()] = spec.version
    return versions


@pytest.mark.parametrize("path", LOCKS, ids=lambda p: p.name)
def test_every_line_is_a_version_with_hashes(path: Path) -> None:
    assert pins(path)
    assert not re.search(r"://|index|find-links|^-", path.read_text("utf-8"), re.MULTILINE)


@pytest.mark.parametrize("text", ["numpy==2.0\n", "numpy>=2.0 \\\n    --hash=sha256:" + "0" * 64,
                                  "numpy @ file:///x.whl \\\n    --hash=sha256:" + "0" * 64])
def test_an_unpinned_or_unhashed_line_is_found(tmp_path: Path, text: str) -> None:
    (tmp_path / "bad.lock").write_text(text)
    with pytest.raises((AssertionError, ValueError)):
        pins(tmp_path / "bad.lock")


def test_locks_agree_with_each_other() -> None:
    core, oracle = pins(ROOT / "requirements.lock"), pins(ROOT / "requirements-oracle.lock")
    assert {n: (core[n], oracle[n]) for n in core.keys() & oracle.keys() if core[n] != oracle[n]} == {}


def test_locks_satisfy_every_bound_of_the_project() -> None:
    extras = PROJECT["optional-dependencies"]
    wanted = {"requirements.lock": [*PROJECT["dependencies"], *extras["demo"], *extras["dev"]],
              "requirements-oracle.lock": [r for r in extras["oracle"] if not r.startswith("torch=")],
              "requirements-zig.lock": extras["zig"]}
    assert set(wanted) == {p.name for p in LOCKS}
    for name, requirements in wanted.items():
        have = pins(ROOT / name)
        for r in map(Requirement, requirements):
            assert r.specifier.contains(have[r.name.lower()]), f"{name}: {r}"


def test_the_oracle_extra_pins_exact_versions() -> None:
    assert all(re.fullmatch(r"[a-z]+==[\d.]+", r) for r in PROJECT["optional-dependencies"]["oracle"])

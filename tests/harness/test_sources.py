"""The source digest moves with what a stage's evidence is about, and with nothing else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from boxes import green_box

from harness import git, sources
from harness.errors import SourceError


@pytest.mark.parametrize(
    ("path", "glob", "hit"),
    [
        ("plow/a.py", "plow/*.py", True),
        ("plow/x/a.py", "plow/*.py", False),
        ("plow/x/a.py", "plow/**", True),
        ("plow/a.py", "plow/**/*.py", True),
        ("plow/x/y/a.py", "plow/**/*.py", True),
        ("a.pth", "**/*.pth", True),
        ("plow/a.pyc", "plow/*.py", False),
        ("stages/s1_x/gate.py", "stages/s?_*/gate*.py", True),
        ("plowx/a.py", "plow/**", False),
    ],
)
def test_globs(path: str, glob: str, hit: bool) -> None:
    assert sources.matches(path, [glob]) is hit


def test_the_digest_moves_with_sources_stage_folder_and_subject_only(tmp_path: Path) -> None:
    box = green_box(tmp_path)
    stage, subject = box.stages[0], {"arch": "a", "params": {}}

    def digest(**changes: object) -> str:
        return sources.source_digest(box.root, box.commit(), stage, {**subject, **changes})

    start = digest()
    assert digest(params={"rows": 8}) != start and digest(checkpoint="other") != start
    box.write("docs/notes.md", "x")
    box.write("plow/unrelated.py", "x = 1\n")
    assert digest() == start
    box.append("stages/s1_demo/gate.py", "\n# note\n")
    moved = digest()
    assert moved != start
    box.candidate("1.5")
    assert digest() not in (start, moved)


def test_a_mode_change_is_a_change(tmp_path: Path) -> None:
    box = green_box(tmp_path)
    before = sources.source_digest(box.root, box.base, box.stages[0], {})
    (box.root / "plow/candidate.py").chmod(0o755)
    assert sources.source_digest(box.root, box.commit(), box.stages[0], {}) != before


def test_a_glob_that_matches_nothing_is_an_error(tmp_path: Path) -> None:
    box = green_box(tmp_path)
    wrong = replace(box.stages[0], sources=("plow/candidate.py", "plow/kandidate.py"))
    with pytest.raises(SourceError, match=r"kandidate\.py"):
        sources.source_digest(box.root, box.base, wrong, {})


def test_files_on_disk_that_differ_are_found(tmp_path: Path) -> None:
    box = green_box(tmp_path)
    head = git.resolve(box.root, "HEAD")
    globs = ["plow/**", "harness/**"]
    assert sources.changed_on_disk(box.root, head, globs) == []
    (box.root / "plow/errors.py").unlink()
    box.write("plow/new.py", "")
    box.write("harness/__pycache__/x.pyc", "")
    box.write("harness/ledger.pyc", "")
    box.write(".git/info/exclude", "*.pyc\n__pycache__\n*.so\n")
    box.write("plow/kernel.so", "")  # a build output: ignored, and no verdict depends on it
    assert sources.changed_on_disk(box.root, head, globs) == ["harness/ledger.pyc", "plow/errors.py", "plow/new.py"]


def test_the_checkpoint_digest_is_of_contents_and_names(tmp_path: Path) -> None:
    folder, cache = tmp_path / "c", tmp_path / "cache.json"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    first = sources.checkpoint_digest(folder, cache)
    assert sources.checkpoint_digest(folder, cache) == first == sources.checkpoint_digest(folder)
    (folder / "config.json").write_text("[]")
    second = sources.checkpoint_digest(folder, cache)
    assert second != first
    (folder / "config.json").rename(folder / "konfig.json")
    assert sources.checkpoint_digest(folder, cache) not in (first, second)


def test_a_missing_or_empty_checkpoint_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="missing"):
        sources.checkpoint_digest(tmp_path / "no")
    with pytest.raises(SourceError, match="empty"):
        sources.checkpoint_digest(tmp_path)

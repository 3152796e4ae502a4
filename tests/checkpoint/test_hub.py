"""What `--checkpoint` accepts: a directory, or the name of a hub repository."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import huggingface_hub
import pytest

from plow.checkpoint import resolve
from plow.errors import CheckpointError


def test_a_directory_is_itself(tmp_path: Path) -> None:
    assert resolve(tmp_path) == tmp_path and resolve(str(tmp_path)) == tmp_path


def test_a_repository_name_is_fetched_without_duplicate_formats(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: dict[str, Any] = {}

    def snapshot(repo: str, **kwargs: Any) -> str:
        asked.update(kwargs, repo=repo)
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    assert resolve("org/name", revision="v1") == tmp_path
    assert asked["repo"] == "org/name" and asked["revision"] == "v1"
    assert "*.safetensors" in asked["allow_patterns"] and "*.bin" in asked["ignore_patterns"]


def test_a_repository_that_cannot_be_fetched_is_a_typed_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def snapshot(repo: str, **kwargs: Any) -> str:
        raise OSError("Network is unreachable\nsecond line")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    with pytest.raises(CheckpointError, match="cannot fetch org/name: Network is unreachable") as e:
        resolve("org/name")
    assert "second line" not in e.value.line()


@pytest.mark.parametrize("ref", ["/no/such/place", "nowhere", "a/b/c", "../x"])
def test_what_is_neither_is_refused(ref: str) -> None:
    with pytest.raises(CheckpointError, match="no such checkpoint directory"):
        resolve(ref)


def test_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").touch()
    with pytest.raises(CheckpointError, match="this is a file"):
        resolve(tmp_path / "model.gguf")

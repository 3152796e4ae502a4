"""The audit finds what would make a certificate worthless, and nothing in the library as it is."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from plow.verify import audit
from plow.verify.library import Library, source_root

REDEFINED = "kernel function redefined"
PLANTED = {
    "hole": ("CounterProtocol/Model.lean", "theorem t : 1 = 2 := sorry", "forbidden word"),
    "axiom": ("CounterProtocol/Model.lean", "axiom cheat : False", "extra axiom"),
    "axiom in the foundation": ("Base/Core.lean", "axiom cheat : False", "extra axiom"),
    "safe compiler axiom": ("Base/Core.lean", "axiom lcErased : False", "extra axiom"),
    "unsafe": ("CounterProtocol/Payload.lean", "unsafe def f : Nat := 1", "forbidden word"),
    "implemented_by": ("Base/Nat.lean", "attribute [implemented_by Nat.add] Nat.mul", "forbidden word"),
    "extern": ("Base/Sum.lean", '@[extern "lean_nat_add"] def f : Nat := 1', "forbidden word"),
    "opaque": ("Base/Digits.lean", "opaque f : Nat", "forbidden word"),
    "macro": ("CounterProtocol/Checked.lean", 'macro "x" : term => `(True.intro)', "forbidden word"),
    "kernel function": ("CounterProtocol/Model.lean", "def Nat.gcd (a b : Nat) : Nat := 0", REDEFINED),
    "kernel function behind an option": (
        "CounterProtocol/Model.lean", "set_option autoImplicit true in def Nat.gcd (a b : Nat) : Nat := 0", REDEFINED),
    "kernel function in a namespace": (
        "Base/Nat.lean", "namespace Nat\nprotected def land (a b : Nat) : Nat := 0\nend Nat", REDEFINED),
    "kernel function from the root": (
        "Base/Sum.lean", "namespace Sum\ndef _root_.Nat.log2 (a : Nat) : Nat := 0\nend Sum", REDEFINED),
    "kernel function without equations": ("Base/Numbers.lean", "def Nat.xor (a b : Nat) : Nat := 0",
                                          "kernel function without equations"),
    "option": ("CounterProtocol/Model.lean", "set_option debug.skipKernelTC true", "forbidden option"),
}


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return Path(shutil.copytree(source_root(), tmp_path / "lean", ignore=shutil.ignore_patterns("build", ".lake")))


def test_the_library_passes(library: Library) -> None:
    assert audit.audit(library) == []


@pytest.mark.parametrize("name", PLANTED)
def test_planted_source_fault_is_found(copy: Path, name: str) -> None:
    file, text, rule = PLANTED[name]
    path = copy / file
    lines = path.read_text().count("\n") + 1
    path.write_text(path.read_text() + text + "\n")
    found = audit.scan(copy)
    assert rule in {f.rule for f in found}
    module = file.removesuffix(".lean").replace("/", ".")
    assert any(f.where.startswith(module) for f in found)
    assert rule.endswith("equations") or any(int(f.where.rpartition(":")[2]) >= lines for f in found if ":" in f.where)


@pytest.mark.parametrize("text", [
    "-- sorry", "/- axiom cheat : False /- nested -/ unsafe -/", "theorem t : true = true := rfl"])
def test_comments_and_honest_theorems_are_no_findings(copy: Path, text: str) -> None:
    path = copy / "CounterProtocol/Model.lean"
    path.write_text(path.read_text() + text + "\n")
    assert audit.scan(copy) == []


def test_missing_equations_of_a_kernel_function_are_found(copy: Path) -> None:
    path = copy / "Base/NatSpec.lean"
    path.write_text(path.read_text().replace("theorem pow_succ", "theorem other"))
    assert [f.text for f in audit.scan(copy)] == ["Nat.pow lacks pow_succ"]


def test_a_module_that_is_not_built_is_found(library: Library, tmp_path: Path) -> None:
    path = Path(shutil.copytree(library.path, tmp_path / "olean"))
    (path / "CounterProtocol/Checked.olean").unlink()
    assert audit.inspect(replace(library, path=path)) == [
        audit.Finding("module not built", "CounterProtocol.Checked", "no .olean")]


def test_a_listed_theorem_that_is_absent_is_found(library: Library) -> None:
    found = audit.inspect(library, [*audit.LISTED, "CounterProtocol.unheard_of"])
    assert [(f.rule, f.where) for f in found] == [("listed theorem missing", "CounterProtocol.unheard_of")]


def test_fewer_checks_than_listed_is_found(library: Library) -> None:
    assert [f.rule for f in audit.inspect(library, audit.LISTED[1:])] == ["fewer checks than listed"]


def test_a_theorem_on_a_forbidden_axiom_is_found(library: Library) -> None:
    found = audit.inspect(library, [*audit.LISTED, "sorryAx"])
    assert [(f.rule, f.text) for f in found] == [("forbidden axiom used", "sorryAx")]

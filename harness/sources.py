"""Which files a stage's evidence is about, and the digest that makes evidence of other files stale."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from harness.errors import SourceError
from harness.evidence import write_atomic
from harness.git import SYMLINK, Entry, differs, tree, untracked
from harness.ledger import canonical
from stages.base import Stage

SHARED = ("stages/base.py", "stages/__init__.py")
DECIDING = ("harness", "stages")
"""Folders whose code decides or defines: there an ignored file counts too, for Python would import it first."""

IGNORED_NAMES = ("__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache", ".hypothesis")


@lru_cache(maxsize=1024)
def _pattern(glob: str) -> re.Pattern[str]:
    """`**/` any folders, `**` anything, `*` and `?` within one name."""
    out, i = "", 0
    while i < len(glob):
        if glob.startswith("**/", i):
            out, i = out + "(?:.*/)?", i + 3
        elif glob.startswith("**", i):
            out, i = out + ".*", i + 2
        else:
            out, i = out + {"*": "[^/]*", "?": "[^/]"}.get(glob[i], re.escape(glob[i])), i + 1
    return re.compile(out, re.DOTALL)


def matches(path: str, globs: Iterable[str]) -> bool:
    return any(_pattern(g).fullmatch(path) for g in globs)


def folder_of(stage: Stage, paths: Iterable[str]) -> str:
    """The stage's folder in a tree, `stages/sN_...`. Raises SourceError when there is none."""
    prefix = f"stages/s{stage.number}_"
    for path in paths:
        if path.startswith(prefix):
            return "/".join(path.split("/")[:2])
    raise SourceError(f"stage {stage.number} has no folder", f"{prefix}*", "commit the stage's folder")


def stage_globs(stage: Stage) -> tuple[str, ...]:
    """The declared sources plus the stage's own folder and what all stages share."""
    return (*stage.sources, f"stages/s{stage.number}_*/**", *SHARED)


def source_files(repo: Path, commit: str, stage: Stage) -> dict[str, Entry]:
    """Files of the commit that the stage's evidence depends on. Raises SourceError if a declared glob matches none."""
    entries = tree(repo, commit)
    for glob in stage.sources:
        if not any(_pattern(glob).fullmatch(p) for p in entries):
            raise SourceError(
                f"stage {stage.number}: source glob {glob!r} matches no file", commit[:12], "fix Stage.sources"
            )
    return {p: e for p, e in entries.items() if matches(p, stage_globs(stage))}


def source_digest(repo: Path, commit: str, stage: Stage, subject: dict[str, Any]) -> str:
    """SHA-256 over (path, mode, object id) of the sources, and the subject: arch, target, checkpoint digest, params."""
    files = [[p, e.mode, e.oid] for p, e in sorted(source_files(repo, commit, stage).items())]
    return hashlib.sha256(canonical({"stage": stage.name, "files": files, "subject": subject})).hexdigest()


def changed_on_disk(root: Path, commit: str, globs: Sequence[str], repo: Path | None = None) -> list[str]:
    """Files matching the globs whose bytes on disk are not the commit's: edited, removed, or not tracked."""
    repo = repo or root
    entries = tree(repo, commit)
    edited = [p for p, e in entries.items() if matches(p, globs) and differs(root, p, e)]
    folders = sorted({re.split(r"[*?]", g)[0].rpartition("/")[0] or g for g in globs if not g.startswith("*")})
    extra = {*untracked(root, folders), *untracked(root, DECIDING, ignored=True)} if folders else set()
    return sorted({*edited, *(p for p in extra if matches(p, globs) and not _is_cache(p))})


def _is_cache(path: str) -> bool:
    return any(part in IGNORED_NAMES or part.endswith(".egg-info") for part in path.split("/"))


def escaping_links(root: Path, repo: Path, commit: str) -> list[str]:
    """Symbolic links of the commit that lead out of the checkout `root`."""
    inside = root.resolve()
    links = (p for p, e in tree(repo, commit).items() if e.mode == SYMLINK)
    return [p for p in links if not (root / p).resolve().is_relative_to(inside)]


def checkpoint_digest(path: Path, cache: Path | None = None) -> str:
    """SHA-256 over names and contents of the checkpoint directory's files (hidden ones and folders excluded).

    cache: a JSON file that remembers content digests by (size, mtime, inode); without it every byte is read.
    Raises SourceError when the directory is missing or empty.
    """
    if not path.is_dir():
        raise SourceError(
            "checkpoint directory is missing", str(path), "put it back, or start a bring-up with another one"
        )
    files = sorted(p for p in path.iterdir() if p.is_file() and not p.name.startswith("."))
    if not files:
        raise SourceError("checkpoint directory is empty", str(path), "it needs config.json and *.safetensors")
    known: dict[str, str] = json.loads(cache.read_text()) if cache and cache.exists() else {}
    fresh: dict[str, str] = {}
    for file in files:
        stat = file.stat()
        key = f"{file}:{stat.st_size}:{stat.st_mtime_ns}:{stat.st_ino}"
        fresh[key] = known.get(key) or _file_digest(file)
    if cache and fresh != known:
        write_atomic(cache, json.dumps(fresh).encode())
    listing = [[file.name, digest] for file, digest in zip(files, fresh.values(), strict=True)]
    return hashlib.sha256(canonical(listing)).hexdigest()


def _file_digest(path: Path) -> str:
    with path.open("rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()

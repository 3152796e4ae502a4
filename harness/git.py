"""The few git questions the harness asks, with everything a repository could use to lie switched off."""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from harness.errors import GitError

SAFE = (
    "-c",
    "core.hooksPath=/dev/null",
    "-c",
    "core.fsmonitor=false",
    "-c",
    "core.attributesFile=/dev/null",
    "-c",
    "core.autocrlf=false",
    "-c",
    "core.quotepath=false",
    "-c",
    "gc.auto=0",
)
WHO = {
    "GIT_AUTHOR_NAME": "plow",
    "GIT_AUTHOR_EMAIL": "plow@localhost",
    "GIT_COMMITTER_NAME": "plow",
    "GIT_COMMITTER_EMAIL": "plow@localhost",
}
SYMLINK, SUBMODULE = "120000", "160000"


@dataclass(frozen=True)
class Entry:
    mode: str
    oid: str


def git(repo: Path, *args: str, stdin: bytes | None = None, env: dict[str, str] | None = None) -> bytes:
    """Output of a git command. GIT_* of the caller is dropped (a hook sets it) and refs/replace is ignored.

    Raises GitError with git's own last line.
    """
    clean = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    clean |= {"GIT_NO_REPLACE_OBJECTS": "1", "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C", **(env or {})}
    try:
        done = subprocess.run(["git", *SAFE, *args], cwd=repo, input=stdin, env=clean, capture_output=True, check=False)
    except FileNotFoundError:
        raise GitError("git is not installed", str(repo), "install git; evidence is bound to commits") from None
    if done.returncode:
        said = (done.stderr.decode(errors="replace").strip().splitlines() or ["no message"])[-1]
        raise GitError(f"git {args[0]}: {said}", str(repo), "run the command by hand to see more")
    return done.stdout


def resolve(repo: Path, ref: str) -> str:
    """The commit that `ref` names. Raises GitError for an unknown ref or a repository without commits."""
    try:
        return git(repo, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{ref}^{{commit}}").decode().strip()
    except GitError:
        raise GitError(f"{ref!r} names no commit", str(repo), "commit first, or pass a ref that exists") from None


def toplevel(path: Path) -> Path:
    try:
        return Path(git(path, "rev-parse", "--show-toplevel").decode().strip())
    except GitError:
        raise GitError("not a git checkout", str(path), "clone the repository; evidence is bound to commits") from None


@lru_cache(maxsize=64)
def tree(repo: Path, commit: str) -> dict[str, Entry]:
    """Every file of a commit: path -> mode and object id. `commit` is a full id, since the answer is remembered."""
    entries = {}
    for item in git(repo, "ls-tree", "-r", "-z", "--full-tree", commit).split(b"\0"):
        if item:
            meta, path = item.split(b"\t", 1)
            mode, _, oid = meta.decode().split()
            entries[os.fsdecode(path)] = Entry(mode, oid)
    return entries


@lru_cache(maxsize=256)
def show(repo: Path, commit: str, path: str) -> bytes | None:
    """Bytes of a file at a commit, or None when it has no such file."""
    entry = tree(repo, commit).get(path)
    return git(repo, "cat-file", "blob", entry.oid) if entry else None


def blobs(repo: Path, oids: Iterable[str]) -> dict[str, bytes]:
    """Contents of many blobs in one call."""
    wanted = sorted(set(oids))
    raw, at, found = git(repo, "cat-file", "--batch", stdin="".join(f"{o}\n" for o in wanted).encode()), 0, {}
    for oid in wanted:
        head_end = raw.index(b"\n", at)
        size = int(raw[at:head_end].split()[2])
        found[oid] = raw[head_end + 1 : head_end + 1 + size]
        at = head_end + 1 + size + 1
    return found


@lru_cache(maxsize=256)
def is_ancestor(repo: Path, old: str, new: str) -> bool:
    """Whether `old` is in the history of `new`; both are full ids."""
    try:
        return git(repo, "merge-base", old, new).decode().strip() == old
    except GitError:
        return False


def blob_id(path: Path, mode: str, like: str) -> str:
    """Object id that the file on disk would have; `like` tells SHA-1 from SHA-256 repositories by its length."""
    raw = os.fsencode(os.readlink(path)) if mode == SYMLINK else path.read_bytes()
    algorithm = hashlib.sha1 if len(like) == 40 else hashlib.sha256
    return algorithm(b"blob %d\0" % len(raw) + raw).hexdigest()


def differs(root: Path, path: str, entry: Entry) -> bool:
    """Whether the file on disk is not the committed one. Hashes it: index flags and fs monitors can hide a change."""
    disk = root / path
    if entry.mode == SUBMODULE:
        return False
    if disk.is_symlink() != (entry.mode == SYMLINK) or not (disk.is_symlink() or disk.is_file()):
        return True
    return blob_id(disk, entry.mode, entry.oid) != entry.oid


def untracked(repo: Path, folders: Iterable[str], ignored: bool = False) -> list[str]:
    """Files under the folders that git does not track; `ignored`: those that .gitignore names too."""
    option = [] if ignored else ["--exclude-standard"]
    return [os.fsdecode(p) for p in git(repo, "ls-files", "--others", *option, "-z", "--", *folders).split(b"\0") if p]


def snapshot(repo: Path, paths: Iterable[str]) -> str:
    """A dangling commit of HEAD plus the given paths as they are on disk; neither index nor branch moves."""
    with tempfile.TemporaryDirectory() as folder:
        env = {"GIT_INDEX_FILE": str(Path(folder) / "index"), **WHO}
        git(repo, "read-tree", "HEAD", env=env)
        listing = b"\0".join(os.fsencode(p) for p in paths)
        git(repo, "update-index", "-z", "--add", "--remove", "--stdin", stdin=listing, env=env)
        new_tree = git(repo, "write-tree", env=env).decode().strip()
        return git(repo, "commit-tree", "-p", "HEAD", "-m", "uncommitted state", new_tree, env=env).decode().strip()


def add_worktree(repo: Path, commit: str, path: Path) -> None:
    git(repo, "worktree", "add", "--detach", "--force", "--quiet", str(path), commit)


def remove_worktree(repo: Path, path: Path) -> None:
    """Remove a worktree and its registration, also one that a killed run left behind."""
    if path.exists():
        git(repo, "worktree", "remove", "--force", "--force", str(path))
    git(repo, "worktree", "prune")

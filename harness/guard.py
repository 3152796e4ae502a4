"""The guard: compares a commit with a base and finds what would let a change pass by weakening its judge.

Which paths are protected is in protected.toml, read from the base. Rules are functions from a `Diff` to findings; a
finding that is not `red` is a notice for the reviewer (a threshold changed on a pull request of its own).
"""

from __future__ import annotations

import hashlib
import re
import sys
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from harness import git, ledger
from harness.errors import GitError, LedgerError
from harness.sources import matches
from harness.verdict import show

RULES_FILE = "harness/protected.toml"
LEDGERS, EVIDENCE = ("**/ledger.jsonl",), ("**/evidence/*.json",)
STARTUP = (
    "**/sitecustomize.py",
    "**/usercustomize.py",
    "**/sitecustomize/**",
    "**/usercustomize/**",
    "**/*.pth",
    "**/*.egg-link",
)
COMPILED = (".so", ".pyc", ".pyd")
SKIPS = re.compile(
    r"mark\.(?:skip|skipif|xfail)\b|\b(?:pytest|unittest)\.(?:skip\w*|xfail|importorskip)\b"
    r"|\b(?:importorskip|collect_ignore(?:_glob)?|SkipTest|expectedFailure)\b|__test__\s*=\s*False"
)
MACHINERY = re.compile(
    r"\bsys\.(?:meta_path|path_hooks|settrace|setprofile|addaudithook|modules)\b|\bbuiltins\b"
    r"|\bimportlib\.abc\b|\b(?:time|statistics)\.\w+\s*=[^=]|^\s*(?:from|import)\s+harness\b",
    re.MULTILINE,
)


@dataclass(frozen=True)
class Rules:
    """protected.toml; every field is a tuple of globs, top_level of names."""

    protected: tuple[str, ...]
    excepted: tuple[str, ...]
    neutral: tuple[str, ...]
    additive: tuple[str, ...]
    top_level: tuple[str, ...]
    skip: tuple[str, ...]
    conftest: tuple[str, ...]
    machinery: tuple[str, ...]

    def protects(self, path: str) -> bool:
        return matches(path, self.protected) and not matches(path, self.excepted)


@dataclass(frozen=True)
class Finding:
    """rule: the name of its function. what: one line that says what was caught."""

    rule: str
    path: str
    what: str
    red: bool = True

    def line(self) -> str:
        return f"{self.rule}: {self.path + ': ' if self.path else ''}{self.what}"


def rules_at(repo: Path, commit: str) -> Rules:
    """protected.toml of a commit. Raises GitError when the commit has none."""
    raw = git.show(repo, commit, RULES_FILE)
    if raw is None:
        raise GitError(f"commit {commit[:12]} has no {RULES_FILE}", str(repo), "commit the harness first")
    return parse_rules(raw.decode())


def parse_rules(text: str) -> Rules:
    data = tomllib.loads(text)
    allow = data["allow"]
    values = [
        data["protected"],
        data["except"],
        data["neutral"],
        data["additive"],
        data["top_level"],
        allow["skip"],
        allow["conftest"],
        allow["machinery"],
    ]
    return Rules(*(tuple(v) for v in values))


@dataclass(frozen=True)
class Diff:
    """Two commits and the rules of the older one."""

    repo: Path
    base: str
    head: str
    rules: Rules

    @cached_property
    def old(self) -> dict[str, git.Entry]:
        return git.tree(self.repo, self.base)

    @cached_property
    def new(self) -> dict[str, git.Entry]:
        return git.tree(self.repo, self.head)

    @cached_property
    def changed(self) -> dict[str, str]:
        """path -> added | edited | removed. A rename is a removal and an addition."""
        paths = sorted(p for p in {*self.old, *self.new} if self.old.get(p) != self.new.get(p))
        return {p: "added" if p not in self.old else "removed" if p not in self.new else "edited" for p in paths}

    @cached_property
    def blobs(self) -> dict[str, bytes]:
        sides = [side[p] for p in self.changed for side in (self.old, self.new) if p in side]
        return git.blobs(self.repo, {e.oid for e in sides if e.mode != git.SUBMODULE})

    def before(self, path: str) -> bytes:
        return self.blobs.get(self.old[path].oid, b"") if path in self.old else b""

    def after(self, path: str) -> bytes:
        return self.blobs.get(self.new[path].oid, b"") if path in self.new else b""

    def added_words(self, path: str, pattern: re.Pattern[str]) -> list[str]:
        """Matches of the pattern that the file has more of than before."""
        old = pattern.findall(self.before(path).decode(errors="replace"))
        new = pattern.findall(self.after(path).decode(errors="replace"))
        return sorted(set(new) - set(old) or set(new)) if len(new) > len(old) else []


Rule = Callable[[Diff], Iterator[Finding]]


def compare(repo: Path, base: str, head: str) -> list[Finding]:
    """Findings of every rule; `base` and `head` are refs. A base without the harness has nothing to compare with."""
    old, new = git.resolve(repo, base), git.resolve(repo, head)
    try:
        rules = rules_at(repo, old)
    except GitError:
        return [Finding("baseline", RULES_FILE, f"base {old[:12]} has none: nothing was protected yet", red=False)]
    diff = Diff(repo, old, new, rules)
    return [finding for rule in RULES for finding in rule(diff)]


def history(diff: Diff) -> Iterator[Finding]:
    if not git.is_ancestor(diff.repo, diff.base, diff.head):
        yield Finding(
            "history",
            "",
            f"base {diff.base[:12]} is not in the history of {diff.head[:12]}: it was rewritten, or must be rebased",
        )


def mixed(diff: Diff) -> Iterator[Finding]:
    """Judge and judged changed in one pull request."""
    mine, candidate = [], []
    for path, how in diff.changed.items():
        if matches(path, (*LEDGERS, *EVIDENCE)) or (how == "added" and matches(path, diff.rules.additive)):
            continue
        if diff.rules.protects(path):
            mine.append((path, how, threshold_changes(diff, path)))
        elif not matches(path, diff.rules.neutral):
            candidate.append(path)
    if "pyproject.toml" in diff.changed and settings_changed(diff):
        mine.append(("pyproject.toml", "edited", ["[tool.pytest] or [tool.coverage]"]))
        candidate = [p for p in candidate if p != "pyproject.toml"]
    for path, how, details in mine:
        detail = f" ({'; '.join(details)})" if details else ""
        if candidate:
            yield Finding(
                "mixed",
                path,
                f"protected file {how}{detail} together with {', '.join(candidate[:3])}"
                f"{' ...' if len(candidate) > 3 else ''}",
            )
        elif details:
            yield Finding("mixed", path, f"{how}{detail}, on its own", red=False)


def threshold_changes(diff: Diff, path: str) -> list[str]:
    """What a changed thresholds.toml changed: "check: threshold 0.1 -> 0.5"."""
    if not path.endswith("/thresholds.toml"):
        return []
    old, new = toml_or_empty(diff.before(path)), toml_or_empty(diff.after(path))
    found = []
    for name in sorted({*old, *new}):
        if name not in new or name not in old:
            found.append(f"{name}: {'added' if name in new else 'removed'}")
            continue
        found += [
            f"{name}: {key} {show(old[name].get(key))} -> {show(new[name].get(key))}"
            for key in ("relation", "threshold")
            if old[name].get(key) != new[name].get(key)
        ]
    return found


def toml_or_empty(raw: bytes) -> dict[str, Any]:
    try:
        return tomllib.loads(raw.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError):
        return {}


def settings_changed(diff: Diff) -> bool:
    """Whether pyproject.toml tells pytest or coverage something else than before."""
    old, new = (
        toml_or_empty(raw).get("tool", {}) for raw in (diff.before("pyproject.toml"), diff.after("pyproject.toml"))
    )
    return any(old.get(key) != new.get(key) for key in ("pytest", "coverage"))


def records(diff: Diff) -> Iterator[Finding]:
    """Ledgers only grow, evidence never changes, and both are what they claim to be."""
    for path, how in diff.changed.items():
        if matches(path, LEDGERS):
            yield from (
                Finding("records", path, what) for what in ledger_faults(diff.before(path), diff.after(path), path)
            )
        elif matches(path, EVIDENCE):
            if how != "added":
                yield Finding("records", path, f"evidence file {how}")
            elif hashlib.sha256(diff.after(path)).hexdigest() != Path(path).stem:
                yield Finding("records", path, "its name is not the digest of its bytes: written by hand")


def ledger_faults(before: bytes, after: bytes, where: str) -> Iterator[str]:
    """Whole lines of the base must be a byte prefix (a torn last line may have been repaired); the rest must chain."""
    whole = before[: before.rfind(b"\n") + 1]
    if not after.startswith(whole):
        kept = sum(a == b for a, b in zip(whole.splitlines(), after.splitlines(), strict=False))
        yield f"lines of the base were removed or edited ({kept} of {len(whole.splitlines())} kept)"
    try:
        ledger.parse(after, where)
    except LedgerError as e:
        yield e.line()


def skipped(diff: Diff) -> Iterator[Finding]:
    """More skip marks than before, in any Python file."""
    for path in touched(diff, ".py"):
        marks = diff.added_words(path, SKIPS)
        if marks and not matches(path, diff.rules.skip):
            yield Finding("skipped", path, f"new skip mark {marks[0]!r}: a skipped check is a failure")


def startup(diff: Diff) -> Iterator[Finding]:
    """Files that Python or pytest runs before any test or judge."""
    for path in (p for p, how in diff.changed.items() if how != "removed"):
        if matches(path, STARTUP):
            yield Finding("startup", path, "runs before every judge")
        elif path.rpartition("/")[2] == "conftest.py" and not matches(path, diff.rules.conftest):
            yield Finding("startup", path, "a conftest can change what a test means")


def links(diff: Diff) -> Iterator[Finding]:
    for path in (p for p, how in diff.changed.items() if how != "removed"):
        mode = diff.new[path].mode
        if mode == git.SUBMODULE:
            yield Finding("links", path, "a submodule is not judged")
        elif mode == git.SYMLINK and leaves(path, diff.after(path).decode(errors="replace")):
            yield Finding(
                "links", path, f"symbolic link out of the checkout: {diff.after(path).decode(errors='replace')}"
            )


def leaves(path: str, target: str) -> bool:
    """Whether a link at `path` with this text points above the top of the checkout."""
    if target.startswith("/"):
        return True
    depth = path.count("/")
    for part in target.split("/"):
        depth += {"..": -1, ".": 0, "": 0}.get(part, 1)
        if depth < 0:
            return True
    return False


def shadows(diff: Diff) -> Iterator[Finding]:
    """A new importable top-level name, or a compiled file that Python prefers to a source file."""
    for path in (p for p, how in diff.changed.items() if how == "added"):
        top, _, rest = path.partition("/")
        name = top.removesuffix(".py")
        importable = (top.endswith(".py") and not rest) or rest == "__init__.py" or name in sys.stdlib_module_names
        if importable and name not in diff.rules.top_level and not matches(path, diff.rules.protected):
            yield Finding("shadows", path, f"import {name} would find this file first")
        if path.endswith(COMPILED):
            yield Finding("shadows", path, "a compiled module is not reviewable")


def machinery(diff: Diff) -> Iterator[Finding]:
    """Candidate code that reaches for the interpreter, the timer, or the harness."""
    for path in touched(diff, ".py"):
        words = diff.added_words(path, MACHINERY)
        if words and not matches(path, diff.rules.machinery):
            yield Finding("machinery", path, f"uses {words[0].strip()!r}")


def touched(diff: Diff, suffix: str) -> Iterator[str]:
    return (p for p, how in diff.changed.items() if how != "removed" and p.endswith(suffix))


RULES: Sequence[Rule] = (history, mixed, records, skipped, startup, links, shadows, machinery)

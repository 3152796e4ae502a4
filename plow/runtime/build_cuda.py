"""Builds the CUDA interpreter (kernels/cuda) into a bundle: one cubin an ISA, with a resource report under a budget.

nvcc needs no GPU. The result is cached by the digest of sources, flags and compiler: a build takes half a minute.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sysconfig
import tempfile
import tomllib
from pathlib import Path
from typing import Any

from plow.errors import ConfigError, ToolMissing
from plow.packet.cheader import header
from plow.runtime.kernel_sources import source_digest

SOURCES = Path(__file__).parents[2] / "kernels" / "cuda"
BUDGET = SOURCES / "budget.toml"
ARCHITECTURES = {"sm_90a": "arch=compute_90a,code=sm_90a"}
RESOURCES = ("registers", "stack", "spill_stores", "spill_loads", "shared")
FLAGS = ("-O3", "-std=c++17", "-cubin", "-Xptxas", "-v")


def build(out: Path, isa: str = "sm_90a", nvcc: str = "", defines: tuple[str, ...] = ()) -> dict[str, Any]:
    """Compile to out/interp.<isa>.cubin and return its manifest entry. Raises ToolMissing without nvcc, ConfigError for
    an unknown isa, a failed compilation, or a kernel that needs more than kernels/cuda/budget.toml allows."""
    if isa not in ARCHITECTURES:
        raise ConfigError(f"unknown isa {isa!r}", "--isa", f"known: {', '.join(ARCHITECTURES)}")
    compiler = find_nvcc(nvcc)
    version = _version(compiler)
    flags = [*FLAGS, f"-gencode={ARCHITECTURES[isa]}", *defines]
    key = hashlib.sha256("\0".join([source_sha256(), version, *flags]).encode()).hexdigest()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "plow" / "cuda" / key
    if not (cache / "interp.cubin").is_file():
        _compile(compiler, flags, cache)
    resources = resource_report((cache / "ptxas.txt").read_text())
    check_budget(resources)
    file = f"interp.{isa}.cubin"
    shutil.copy(cache / "interp.cubin", out / file)
    digest = hashlib.sha256((out / file).read_bytes()).hexdigest()
    return {
        "file": file,
        "sha256": digest,
        "isa": isa,
        "compiler": version,
        "flags": flags,
        "source_sha256": source_sha256(),
        "resources": resources,
    }


def find_nvcc(choice: str = "") -> str:
    """The compiler: `choice`, else $PLOW_NVCC, else that of PATH, else the pip toolkit's. One that was asked for and is
    not there is an error, not a reason to take another. Raises ToolMissing."""
    for asked, where in ((choice, "nvcc"), (os.environ.get("PLOW_NVCC", ""), "PLOW_NVCC")):
        if asked:
            found = shutil.which(asked)
            if found is None:
                raise ToolMissing(f"no CUDA compiler at {asked!r}", where, "name an nvcc that can be executed")
            return found
    wheels = Path(sysconfig.get_paths()["purelib"]) / "nvidia"
    found = shutil.which("nvcc") or next(map(str, sorted(wheels.glob("*/bin/nvcc"))), None)
    if found is None:
        raise ToolMissing("no CUDA compiler", "nvcc", "install the CUDA toolkit, or pip install plow[cuda]")
    return found


def source_sha256() -> str:
    """Digest of the CUDA sources and of the ABI header that they are compiled with."""
    return source_digest(_sources())


def resource_report(ptxas: str) -> dict[str, dict[str, int]]:
    """Kernel -> {"registers", "stack", "spill_stores", "spill_loads", "shared"} from ptxas -v: registers of a thread,
    else bytes; shared is the static part. Raises ConfigError."""
    found = {}
    for part in ptxas.split("Compiling entry function")[1:]:
        name = re.search(r"'(\w+)'", part)
        frame = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", part)
        used, shared = re.search(r"Used (\d+) registers", part), re.search(r"(\d+) bytes smem", part)
        if name and frame and used:
            numbers = (used[1], frame[1], frame[2], frame[3], shared[1] if shared else 0)
            found[name[1]] = dict(zip(RESOURCES, map(int, numbers), strict=True))
    if not found:
        raise ConfigError("ptxas says nothing about the kernels", str(SOURCES), "compile with -Xptxas -v")
    return found


def check_budget(resources: dict[str, dict[str, int]]) -> None:
    """Raises ConfigError naming all that grew beyond the budget file: the kernel's table in it, else [default]."""
    budget = tomllib.loads(BUDGET.read_text())
    unknown = sorted({name for table in budget.values() for name in table} - set(RESOURCES))
    if unknown or not budget.get("default"):
        raise ConfigError(
            f"the budget limits {', '.join(unknown) or 'nothing by default'}",
            str(BUDGET),
            f"limit some of {', '.join(RESOURCES)}",
        )
    grown = [
        f"{kernel} needs {name} {used[name]}, the budget is {most}"
        for kernel, used in resources.items()
        for name, most in budget.get(kernel, budget["default"]).items()
        if used[name] > most
    ]
    if grown:
        raise ConfigError(
            "; ".join(grown),
            str(BUDGET),
            "make the kernel smaller, or measure that the larger one is faster and raise the budget",
        )


def _sources() -> list[Path]:
    return sorted(p for p in SOURCES.iterdir() if p.suffix in (".cu", ".cuh", ".h") and p.name != "plow_abi.h")


def _version(compiler: str) -> str:
    try:
        done = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False)
    except OSError as e:
        raise ToolMissing(f"the CUDA compiler does not start: {e.strerror}", compiler, "name another one") from None
    found = re.search(r"release [\d.]+, (V[\d.]+)", done.stdout)
    return f"nvcc {found[1] if found else 'version unknown'}"


def _compile(compiler: str, flags: list[str], cache: Path) -> None:
    """Fill the cache entry, which appears whole or not at all."""
    with tempfile.TemporaryDirectory() as scratch:
        for path in _sources():
            shutil.copy(path, scratch)
        (Path(scratch) / "plow_abi.h").write_text(header())
        done = subprocess.run(
            [compiler, *flags, "interp.cu", "-o", "interp.cubin"],
            cwd=scratch,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            lines = (done.stderr or done.stdout).strip().splitlines()
            error = next((line for line in lines if "error" in line), lines[0] if lines else "no message")
            raise ConfigError(f"the interpreter does not compile: {error}", str(SOURCES), "use nvcc 12.4 or newer")
        (Path(scratch) / "ptxas.txt").write_text(done.stderr + done.stdout)
        cache.mkdir(parents=True, exist_ok=True)
        for name in ("ptxas.txt", "interp.cubin"):  # the cubin last: it says that the entry is whole
            partial = cache / f"{name}.{os.getpid()}"
            shutil.copy(Path(scratch) / name, partial)
            partial.rename(cache / name)

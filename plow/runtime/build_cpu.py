"""Builds the C interpreter (kernels/cpu) into a bundle: finds a compiler, picks the vector width, records both."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plow.errors import ConfigError, ToolMissing
from plow.packet.cheader import header
from plow.runtime.kernel_sources import source_digest

SOURCES = Path(__file__).parents[2] / "kernels" / "cpu"
LIBRARY = "interp.so"
COMPILERS = ("cc", "gcc", "clang")
DOT_FEATURE = "avx512_bf16"
FLAGS = ("-std=gnu11", "-O3", "-fPIC", "-pthread", "-fvisibility=hidden", "-fno-math-errno", "-ffp-contract=off")
"""Contraction stays off: every fused multiply-add is written as one, so all builds compute the same bits."""
PREFETCH_BYTES = 8192
"""How far ahead weights are fetched (unit.c)."""


@dataclass(frozen=True)
class Simd:
    """A variant of simd.h. features: names of /proc/cpuinfo that a processor needs to run it."""

    name: str
    features: frozenset[str]
    flags: tuple[str, ...]


SIMD = {s.name: s for s in (
    Simd("avx512", frozenset({"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx2", "fma", "bmi2"}),
         ("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx2", "-mfma", "-mbmi2",
          "-mprefer-vector-width=512")),
    Simd("avx2", frozenset({"avx2", "fma", "bmi2"}), ("-mavx2", "-mfma", "-mbmi2")),
    Simd("portable", frozenset(), ()),
)}
"""Widest first."""


def cpu_features() -> frozenset[str]:
    """Feature flags of this processor; empty where the system does not tell."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return frozenset()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return frozenset()
    flags = next((line for line in lines if line.startswith("flags")), "")
    return frozenset(flags.partition(":")[2].split())


def choose_simd(name: str | None = None) -> Simd:
    """The named variant (argument or PLOW_SIMD), else the widest that this processor runs. Raises ConfigError."""
    name = name or os.environ.get("PLOW_SIMD") or ""
    features = cpu_features()
    if not name:
        return next(s for s in SIMD.values() if s.features <= features)
    if name not in SIMD:
        raise ConfigError(f"unknown vector width {name!r}", "PLOW_SIMD", f"known: {', '.join(SIMD)}")
    return SIMD[name]


def build(out: Path, simd: str | None = None, prefetch_bytes: int = PREFETCH_BYTES,
          defines: tuple[str, ...] = ()) -> dict[str, Any]:
    """Compile the interpreter to out/interp.so and return its manifest entry: file, sha256, and how it was made.

    simd: avx512, avx2 or portable; default: what this processor runs. defines: extra compiler arguments. Raises
    ToolMissing when no compiler is found or none compiles the sources, ConfigError for an unknown simd.
    """
    variant = choose_simd(simd)
    dot = variant.name == "avx512" and DOT_FEATURE in cpu_features()
    flags = [*FLAGS, *variant.flags, *(["-mavx512bf16"] if dot else []), f"-DPLOW_SIMD_{variant.name.upper()}",
             f"-DPREFETCH_BYTES={prefetch_bytes}", *defines]
    failures: list[str] = []
    for compiler in _compilers():
        try:
            _compile(compiler, flags, out / LIBRARY)
        except subprocess.CalledProcessError as e:
            failures.append(f"{compiler.name}: {_first_error(e.stderr)}")
            continue
        digest = hashlib.sha256((out / LIBRARY).read_bytes()).hexdigest()
        features = sorted(variant.features | ({DOT_FEATURE} if dot else set()))
        return {"file": LIBRARY, "sha256": digest, "simd": variant.name, "cpu_features": features,
                "compiler": compiler.version(), "flags": flags, "source_sha256": source_sha256()}
    if failures:
        raise ToolMissing(f"the interpreter does not compile: {failures[0]}", str(SOURCES),
                          "use gcc >= 10 or clang >= 12, or pip install ziglang")
    raise ToolMissing("no C compiler", "PATH", "install gcc or clang, or pip install ziglang")


def source_sha256() -> str:
    """Digest of the C sources and of the ABI header that they are compiled with."""
    return source_digest(_sources())


def _sources() -> list[Path]:
    return sorted(p for p in SOURCES.iterdir() if p.suffix in (".c", ".h") and p.name != "plow_abi.h")


@dataclass(frozen=True)
class _Compiler:
    name: str
    command: tuple[str, ...]
    extra: tuple[str, ...] = ()

    def version(self) -> str:
        done = subprocess.run([*self.command, "--version"], capture_output=True, text=True, check=False)
        return f"{self.name}: {done.stdout.splitlines()[0] if done.stdout else 'version unknown'}"


def _compilers() -> list[_Compiler]:
    """$CC if it is set, else what PATH has, else the ziglang wheel."""
    if os.environ.get("CC"):
        return [_Compiler(os.environ["CC"], tuple(os.environ["CC"].split()))]
    found = [_Compiler(name, (path,)) for name in COMPILERS if (path := shutil.which(name))]
    if importlib.util.find_spec("ziglang"):
        # zig turns undefined-behaviour traps on by default
        found.append(_Compiler("ziglang", (sys.executable, "-m", "ziglang", "cc"), ("-fno-sanitize=undefined",)))
    return found


def _compile(compiler: _Compiler, flags: list[str], library: Path) -> None:
    """Objects in parallel, then one link. Raises CalledProcessError with the compiler's messages."""
    with tempfile.TemporaryDirectory() as scratch:
        for path in _sources():
            shutil.copy(path, scratch)
        (Path(scratch) / "plow_abi.h").write_text(header())
        environment = {"ZIG_LOCAL_CACHE_DIR": f"{scratch}/zig", "ZIG_GLOBAL_CACHE_DIR": f"{scratch}/zig", **os.environ}

        def run(*arguments: str) -> None:
            subprocess.run([*compiler.command, *compiler.extra, *flags, *arguments], cwd=scratch, env=environment,
                           check=True, capture_output=True, text=True)

        units = [p.stem for p in _sources() if p.suffix == ".c"]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(lambda unit: run("-c", f"{unit}.c", "-o", f"{unit}.o"), units))
        run("-shared", "-o", LIBRARY, *(f"{unit}.o" for unit in units), "-lm")
        shutil.copy(Path(scratch) / LIBRARY, library)


def _first_error(stderr: str) -> str:
    lines = stderr.strip().splitlines()
    return next((line for line in lines if "error" in line), lines[0] if lines else "no message")

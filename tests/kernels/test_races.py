"""The counter protocol under the thread sanitizer, with a build whose ordering is removed as the negative."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from plow.packet.cheader import header
from plow.runtime.build_cpu import SOURCES

RUNS, STEPS, WORKERS = 4, 50, 2


def run(tmp_path: Path, *defines: str) -> subprocess.CompletedProcess[str]:
    """Compile and run race.c with -fsanitize=thread; skips where the compiler has no sanitizer runtime."""
    compiler = shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no gcc or clang: the thread sanitizer needs one")
    (tmp_path / "plow_abi.h").write_text(header())
    program = tmp_path / "race"
    files = [str(Path(__file__).parent / "race.c"), str(SOURCES / "interp.c"), str(SOURCES / "rows.c")]
    flags = ["-std=gnu11", "-O0", "-g", "-pthread", "-fsanitize=thread", "-DPLOW_SIMD_PORTABLE", *defines]
    build = subprocess.run([compiler, *flags, f"-I{tmp_path}", f"-I{SOURCES}", *files, "-o", str(program), "-lm"],
                           capture_output=True, text=True, check=False)
    if "tsan" in build.stderr and build.returncode:
        pytest.skip("the compiler has no thread sanitizer runtime")
    assert build.returncode == 0, build.stderr
    # The sanitizer cannot map its shadow memory under strong address randomisation.
    prefix = ["setarch", "-R"] if shutil.which("setarch") else []
    return subprocess.run([*prefix, str(program)], capture_output=True, text=True, check=False, timeout=60)


def test_the_step_loop_has_no_data_race(tmp_path: Path) -> None:
    done = run(tmp_path)
    assert done.returncode == 0 and "ThreadSanitizer" not in done.stderr, done.stderr
    assert float(done.stdout) == pytest.approx(1.01 ** (RUNS * STEPS * (WORKERS + 1)), rel=1e-4)


def test_the_sanitizer_sees_missing_ordering(tmp_path: Path) -> None:
    assert "WARNING: ThreadSanitizer: data race" in run(tmp_path, "-DPLOW_RACE_MUTANT").stderr

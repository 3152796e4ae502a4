"""Building the CUDA interpreter: which compiler, what ptxas reports, what the budget allows."""

from __future__ import annotations

import hashlib
import shutil
import sysconfig
from pathlib import Path

import pytest

from plow.errors import ConfigError, ToolMissing
from plow.runtime import build_cuda
from plow.runtime.build_cuda import build, check_budget, find_nvcc, resource_report, source_sha256

PTXAS = """ptxas info    : 0 bytes gmem, 16 bytes cmem[3]
ptxas info    : Compiling entry function 'plow_interp_c1_d64' for 'sm_90a'
ptxas info    : Function properties for plow_interp_c1_d64
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 160 registers, used 2 barriers
ptxas info    : Compiling entry function 'plow_interp_c8_d64' for 'sm_90a'
ptxas info    : Function properties for plow_interp_c8_d64
    40 bytes stack frame, 64 bytes spill stores, 72 bytes spill loads
ptxas info    : Used 168 registers, used 2 barriers, 40 bytes cumulative stack size, 128 bytes smem
ptxas info    : Compile time = 900.000 ms
"""
ONE = {"registers": 160, "stack": 0, "spill_stores": 0, "spill_loads": 0, "shared": 0}
EIGHT = {"registers": 168, "stack": 40, "spill_stores": 64, "spill_loads": 72, "shared": 128}
REPORT = {"plow_interp_c1_d64": ONE, "plow_interp_c8_d64": EIGHT}


def test_every_kernel_is_reported_with_its_own_numbers() -> None:
    assert resource_report(PTXAS) == REPORT


@pytest.mark.parametrize("text", ["", PTXAS.replace("entry function", "something"), PTXAS.replace("Used", "Has")])
def test_a_report_without_kernels_is_a_typed_error(text: str) -> None:
    with pytest.raises(ConfigError, match="says nothing about the kernels"):
        resource_report(text)


def budget(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str) -> None:
    (tmp_path / "budget.toml").write_text(text)
    monkeypatch.setattr(build_cuda, "BUDGET", tmp_path / "budget.toml")


def test_everything_that_grew_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    budget(monkeypatch, tmp_path, "[default]\nregisters = 168\nstack = 39\nspill_loads = 8\n")
    with pytest.raises(ConfigError) as e:
        check_budget(REPORT)
    assert e.value.what == ("plow_interp_c8_d64 needs stack 40, the budget is 39; "
                            "plow_interp_c8_d64 needs spill_loads 72, the budget is 8")  # fmt: skip
    assert "budget.toml" in e.value.where


def test_a_kernel_may_have_a_budget_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    budget(monkeypatch, tmp_path, "[default]\nstack = 0\n[plow_interp_c8_d64]\nstack = 40\n")
    check_budget(REPORT)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "nothing by default"),
        ("[plow_interp_c8_d64]\nstack = 1\n", "nothing by default"),
        ("[default]\nregister = 1\n", "limits register"),
    ],
)
def test_a_budget_that_limits_nothing_we_know_is_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, what: str
) -> None:
    budget(monkeypatch, tmp_path, text)
    with pytest.raises(ConfigError, match=what):
        check_budget(REPORT)


def test_the_committed_budget_limits_what_hurts() -> None:
    check_budget({"any": dict.fromkeys(ONE, 0)})
    with pytest.raises(ConfigError, match=r"registers.*stack.*spill_stores.*spill_loads"):
        check_budget({"any": dict.fromkeys(ONE, 1 << 20)})


FAKE_NVCC = """#!/bin/sh
[ "$1" = --version ] && echo 'Cuda compilation tools, release 13.0, V13.0.99' && exit 0
echo run >> "{log}"
[ -f plow_abi.h ] && [ -f interp.cu ] || exit 1
while [ "$1" != -o ]; do shift; done
echo cubin > "$2"
cat "{ptxas}" >&2
"""


@pytest.fixture
def nvcc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A compiler that counts its runs in nvcc.log, and an empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("PLOW_NVCC", raising=False)
    budget(monkeypatch, tmp_path, "[default]\nregisters = 168\n")
    (tmp_path / "ptxas.txt").write_text(PTXAS)
    (tmp_path / "nvcc.log").touch()
    return executable(tmp_path / "nvcc", FAKE_NVCC.format(log=tmp_path / "nvcc.log", ptxas=tmp_path / "ptxas.txt"))


def executable(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def test_a_build_is_recorded_and_cached_by_what_made_it(nvcc: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    entry = build(out, nvcc=str(nvcc))
    assert entry["file"] == "interp.sm_90a.cubin" and entry["isa"] == "sm_90a" and entry["resources"] == REPORT
    assert entry["sha256"] == hashlib.sha256((out / entry["file"]).read_bytes()).hexdigest()
    assert entry["compiler"] == "nvcc V13.0.99" and entry["source_sha256"] == source_sha256()
    assert {"-O3", "-cubin", "-gencode=arch=compute_90a,code=sm_90a"} <= set(entry["flags"])
    runs = lambda: len((tmp_path / "nvcc.log").read_text().split())  # noqa: E731
    assert build(out, nvcc=str(nvcc)) == entry and runs() == 1
    build(out, nvcc=str(nvcc), defines=("-DX=1",))
    nvcc.write_text(nvcc.read_text().replace("V13.0.99", "V13.1.2"))
    build(out, nvcc=str(nvcc))
    assert runs() == 3, "flags and compiler are part of the key"
    assert not list((tmp_path / "cache").rglob(f"*.{'partial'}")) and len(list(out.iterdir())) == 1


def test_a_kernel_over_budget_never_reaches_the_bundle(
    nvcc: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    budget(monkeypatch, tmp_path, "[default]\nregisters = 100\n")
    out = tmp_path / "out"
    out.mkdir()
    for _ in range(2):  # a cached build is judged as well
        with pytest.raises(ConfigError, match=r"registers 160, the budget is 100; .*registers 168"):
            build(out, nvcc=str(nvcc))
    assert not list(out.iterdir())


def test_a_failed_compilation_is_quoted_and_not_cached(nvcc: Path, tmp_path: Path) -> None:
    text = nvcc.read_text()
    nvcc.write_text(text.replace("echo run", "echo 'interp.cu(3): error: out of cheese' >&2; exit 2; echo run"))
    with pytest.raises(ConfigError, match="out of cheese"):
        build(tmp_path, nvcc=str(nvcc))
    nvcc.write_text(text)
    build(tmp_path, nvcc=str(nvcc))


def test_an_unknown_isa_is_a_typed_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"sm_80.*known: sm_90a"):
        build(tmp_path, isa="sm_80")


def test_where_the_compiler_is_looked_for(nvcc: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = tmp_path / "site" / "nvidia" / "cu13" / "bin" / "nvcc"
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"purelib": str(tmp_path / "site")})
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    with pytest.raises(ToolMissing, match=r"no CUDA compiler.*pip install"):
        find_nvcc()
    shutil.copy(nvcc, executable(wheel, ""))
    assert find_nvcc() == str(wheel)
    on_path = executable(tmp_path / "bin" / "nvcc", "")
    monkeypatch.setenv("PATH", str(on_path.parent))
    assert find_nvcc() == str(on_path)
    monkeypatch.setenv("PLOW_NVCC", str(nvcc))
    assert find_nvcc() == str(nvcc) and find_nvcc(str(wheel)) == str(wheel)


def test_a_compiler_that_was_asked_for_is_not_replaced(nvcc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(nvcc.parent))
    monkeypatch.setenv("PLOW_NVCC", "/nowhere/nvcc")
    with pytest.raises(ToolMissing, match="/nowhere/nvcc"):
        find_nvcc()
    with pytest.raises(ToolMissing, match="/absent/nvcc"):
        find_nvcc("/absent/nvcc")

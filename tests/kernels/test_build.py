"""Building the interpreter: what is chosen, what is recorded, and what a user is told when it cannot be done."""

from __future__ import annotations

import hashlib
import importlib.util
from pathlib import Path

import pytest

from plow.errors import BundleError, ConfigError, ToolMissing
from plow.packet.cheader import header
from plow.runtime import build_cpu
from plow.runtime.build_cpu import SOURCES, build, choose_simd, source_sha256
from plow.runtime.cpu_lib import open_library


def test_the_committed_abi_header_is_the_generated_one() -> None:
    assert (SOURCES / "plow_abi.h").read_text() == header(), "write cheader.header() to kernels/cpu/plow_abi.h"


@pytest.mark.parametrize(("features", "name"), [
    ({"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx2", "fma", "bmi2", "sse2"}, "avx512"),
    ({"avx512f", "avx2", "fma", "bmi2"}, "avx2"), ({"avx2"}, "portable"), (set(), "portable")])
def test_the_widest_vectors_of_the_processor_are_chosen(monkeypatch: pytest.MonkeyPatch, features: set[str],
                                                        name: str) -> None:
    monkeypatch.delenv("PLOW_SIMD", raising=False)
    monkeypatch.setattr(build_cpu, "cpu_features", lambda: frozenset(features))
    assert choose_simd().name == name


def test_the_environment_overrides_the_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLOW_SIMD", "portable")
    assert choose_simd().name == "portable" and choose_simd("avx2").name == "avx2"


def test_an_unknown_width_is_a_typed_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLOW_SIMD", "mmx")
    with pytest.raises(ConfigError, match=r"mmx.*avx512, avx2, portable"):
        choose_simd()


def test_the_manifest_entry_names_everything_that_made_the_file(tmp_path: Path) -> None:
    entry = build(tmp_path, simd="portable", defines=("-O0",))
    assert entry["sha256"] == hashlib.sha256((tmp_path / entry["file"]).read_bytes()).hexdigest()
    assert entry["simd"] == "portable" and entry["cpu_features"] == [] and entry["source_sha256"] == source_sha256()
    assert entry["compiler"] and "-ffp-contract=off" in entry["flags"]
    assert open_library(tmp_path / entry["file"]).plow_simd() == b"portable"
    assert sorted(p.name for p in tmp_path.iterdir()) == [entry["file"]], "no objects are left behind"


def test_no_compiler_is_a_typed_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ToolMissing, match="ziglang"):
        build(tmp_path)


def test_a_compiler_that_fails_is_quoted_in_the_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bad = tmp_path / "badcc"
    bad.write_text("#!/bin/sh\necho 'x.c:1: error: out of cheese' >&2\nexit 1\n")
    bad.chmod(0o755)
    monkeypatch.setenv("CC", str(bad))
    with pytest.raises(ToolMissing, match="out of cheese"):
        build(tmp_path)


def test_a_file_that_is_no_interpreter_is_a_typed_error(tmp_path: Path) -> None:
    (tmp_path / "interp.so").write_bytes(b"not an object file")
    with pytest.raises(BundleError, match="does not load"):
        open_library(tmp_path / "interp.so")


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("ziglang") is None, reason="the zig extra is not installed")
def test_the_zig_wheel_builds_the_interpreter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    entry = build(tmp_path)
    assert entry["compiler"].startswith("ziglang") and open_library(tmp_path / entry["file"])

"""The ceiling probes give plausible numbers on any machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from plow.runtime import cpu_probe
from plow.runtime.cpu_lib import allowed_cpus
from plow.runtime.cpu_probe import probe


def test_every_ceiling_is_measured(widest: Path) -> None:
    found = probe(widest, read_bytes=8 << 20, repeats=1)
    assert found["threads"] == len(allowed_cpus())
    for name in ("read_bytes_per_s", "read_bytes_per_s_one", "fp32_flops", "bf16_dot_flops"):
        assert 1e8 < found[name] < 1e15, name
    if len(allowed_cpus()) > 1:
        assert 1e-9 < found["hop_s"] < 1e-2 and 1e-9 < found["barrier_s"] < 1e-2


def test_one_core_has_no_hop(widest: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = allowed_cpus()[:1]
    monkeypatch.setattr(cpu_probe, "allowed_cpus", lambda: one)
    found = probe(widest, threads=8, read_bytes=1 << 20, repeats=1)
    assert found["threads"] == 1 and found["hop_s"] == found["barrier_s"] == 0

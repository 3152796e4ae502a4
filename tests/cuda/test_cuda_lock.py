"""A second process that wants the GPU is told who has it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from plow.runtime import cuda_lock
from plow.runtime.cuda_device import DeviceError

HOLDER = """
import sys
from types import SimpleNamespace
from plow.runtime.cuda_lock import hold
hold(SimpleNamespace(cuda=SimpleNamespace(Device=lambda: SimpleNamespace(pci_bus_id=sys.argv[1]))))
print("held", flush=True)
sys.stdin.read()
"""


def device(bus: str) -> SimpleNamespace:
    return SimpleNamespace(cuda=SimpleNamespace(Device=lambda: SimpleNamespace(pci_bus_id=bus)))


def test_the_process_that_holds_the_gpu_is_named_and_its_end_frees_it(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    bus = "0000:1b:00.0"
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, bus], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env
    ) as other:
        assert other.stdout and other.stdout.readline() == "held\n"
        with pytest.raises(DeviceError, match=rf"another plow process \(pid {other.pid}\).*{bus}"):
            cuda_lock.hold(device(bus))
        cuda_lock.hold(device("0000:2b:00.0"))
    cuda_lock.hold(device(bus))
    cuda_lock.hold(device(bus))
    assert cuda_lock.lock_file(bus).read_text() == str(os.getpid())


def test_without_a_place_for_the_lock_nothing_is_refused(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    cuda_lock.hold(device("0000:3b:00.0"))

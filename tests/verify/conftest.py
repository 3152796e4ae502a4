"""The compiled Lean library and the small program that all tests of this room share."""

from __future__ import annotations

from pathlib import Path

import pytest

from plow.packet import container
from plow.packet.container import PacketFile
from plow.verify.library import Library, compile_library
from plow.verify.sample import sample_program


@pytest.fixture(scope="session")
def library() -> Library:
    """Compiled with warnings as errors, once for a source digest (the cache in the user's folder)."""
    return compile_library()


@pytest.fixture
def sample() -> PacketFile:
    return sample_program()


@pytest.fixture
def bundle(tmp_path: Path, sample: PacketFile) -> Path:
    """A folder with model.pkt only: what the verifier needs of a bundle."""
    container.save(sample, tmp_path / "model.pkt")
    return tmp_path

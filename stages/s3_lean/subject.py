"""What stage 3 judges: packet bytes as the compiler writes them now, and the Lean library that certifies them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from plow.checkpoint import Checkpoint
from plow.compile import Options, lower
from plow.models import build
from plow.packet.container import PacketFile, save
from plow.verify import selftest
from plow.verify.library import source_root
from stages.base import Check, StageContext, Thresholds
from stages.subject import repeat

STAGE = 3
MAX_CTX = 2048


def compile_packets(ctx: StageContext) -> PacketFile:
    """All programs of the checkpoint, by the compiler's own path; no weight is packed for it."""
    checkpoint = Checkpoint.open(ctx.checkpoint)
    graph = build(checkpoint.config)
    options = Options(max_ctx=min(MAX_CTX, graph.meta["max_position_embeddings"]))
    return lower(
        graph, options, min(graph.meta["vocab_size"], checkpoint.tokenizer_size or graph.meta["vocab_size"])
    ).packets


@dataclass
class Subject:
    """bundle: a folder with model.pkt and, once certified, certificates/. lean: the library's sources.

    tamper: what happens to the bundle between its certification and its use (nothing, but for a planted fault).
    self_test: corrupts the first program's payload in every listed way; see plow.verify.selftest.run_all.
    """

    ctx: StageContext
    packets: PacketFile
    thresholds: Thresholds
    lean: Path
    tamper: Callable[[Path], None] = field(default=lambda bundle: None)
    self_test: Callable[[PacketFile], dict[str, Any]] = selftest.run_all

    @classmethod
    def of(cls, ctx: StageContext, packets: PacketFile, lean: Path | None = None) -> Subject:
        thresholds = Thresholds.load(Path(__file__).with_name("thresholds.toml"), ctx.target)
        subject = cls(ctx, packets, thresholds, lean or source_root())
        subject.bundle.mkdir(parents=True)
        save(packets, subject.bundle / "model.pkt")
        return subject

    @property
    def bundle(self) -> Path:
        return self.ctx.workdir / "bundle"

    def check(self, name: str, measured: Any, detail: str = "") -> Check:
        return self.thresholds.check(name, measured, repeat(self.ctx, STAGE, name), detail)


@contextmanager
def fresh_cache(folder: Path) -> Iterator[None]:
    """The Lean library is built anew: compiled files that lie in the user's cache are a claim, not a proof."""
    old = os.environ.get("XDG_CACHE_HOME")
    os.environ["XDG_CACHE_HOME"] = str(folder)
    try:
        yield
    finally:
        if old is None:
            del os.environ["XDG_CACHE_HOME"]
        else:
            os.environ["XDG_CACHE_HOME"] = old

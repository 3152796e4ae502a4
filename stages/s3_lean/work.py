"""Work of stage 3: compile every program, certify it, and leave the certificates."""

from __future__ import annotations

import shutil

from plow.packet.container import save
from plow.verify.certificate import certify
from stages.base import Progress, StageContext
from stages.s3_lean.subject import compile_packets


def work(ctx: StageContext, progress: Progress) -> None:
    """Writes artifacts/certificates/. Raises VerifyError naming the packet when Lean rejects a program."""
    progress("compile all programs", 0.0)
    bundle = ctx.workdir / "certified"
    shutil.rmtree(bundle, ignore_errors=True)
    bundle.mkdir(parents=True)
    packets = compile_packets(ctx)
    save(packets, bundle / "model.pkt")
    certify(bundle / "model.pkt", ctx.artifacts / "certificates", progress=lambda line: progress(line))
    progress(f"{len(packets.programs)} programs certified", 1.0)

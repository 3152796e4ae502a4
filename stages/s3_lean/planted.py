"""Known-bad subjects for the gate of stage 3: a scheduled program with a fault in its bytes, libraries with holes."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from plow.packet.abi import NO_COUNTER, STEP_COUNTER
from plow.packet.container import PacketFile, load, save
from plow.verify import selftest
from plow.verify.library import source_root
from plow.verify.sample import sample_program
from stages.base import GateReport, Planted, StageContext
from stages.s3_lean.gate import judge
from stages.s3_lean.subject import Subject

Spoil = Callable[[PacketFile], None]


def report(
    ctx: StageContext, spoil: Spoil = lambda file: None, tamper: Callable[[Path], None] = lambda bundle: None
) -> GateReport:
    file = sample_program()
    spoil(file)
    subject = Subject.of(ctx, file)
    subject.tamper, subject.self_test = tamper, lambda packets: _self_test()
    return judge(subject)


@cache
def _self_test() -> dict[str, Any]:
    """Of the sample program, once for all controls: it takes 30 runs of Lean."""
    return selftest.run_all(sample_program())


def with_source(ctx: StageContext, module: str, text: str) -> GateReport:
    """The library with one more module."""
    lean = ctx.workdir / "lean"
    shutil.copytree(source_root(), lean)
    (lean / module).write_text(text)
    return judge(Subject.of(ctx, sample_program(), lean))


def _waiting(file: PacketFile) -> tuple[int, int, int]:
    """(worker, position, slot) of a wait inside the step, in the middle of the program."""
    found = [
        (w, i, k)
        for w, packets in enumerate(file.programs[0].lists)
        for i, p in enumerate(packets)
        for k, wait in enumerate(p["waits"])
        if int(wait["counter"]) not in (NO_COUNTER, STEP_COUNTER)
    ]
    return found[len(found) // 2]


def wait_dropped(file: PacketFile) -> None:
    w, i, k = _waiting(file)
    file.programs[0].lists[w]["waits"][i, k] = (NO_COUNTER, 0)


def threshold_raised(file: PacketFile) -> None:
    """More signals than anybody gives: the packet would wait for ever."""
    w, i, k = _waiting(file)
    file.programs[0].lists[w]["waits"]["threshold"][i, k] += 1


def signal_dropped(file: PacketFile) -> None:
    w, i, k = _waiting(file)
    counter = int(file.programs[0].lists[w]["waits"]["counter"][i, k])
    for packets in file.programs[0].lists:
        for p in range(len(packets)):
            if counter in packets["signals"][p]:
                packets["signals"][p][packets["signals"][p] == counter] = NO_COUNTER
                return


def rewritten_afterwards(bundle: Path) -> None:
    """Other bytes under the same certificate."""
    file = load(bundle / "model.pkt")
    for program in file.programs:
        program.lists[:] = [packets.copy() for packets in program.lists]
    wait_dropped(file)
    save(file, bundle / "model.pkt")


def certificate_removed(bundle: Path) -> None:
    (bundle / "certificates" / "D.json").unlink()


PLANTED = (
    Planted(
        "a wait is missing in the packets", lambda ctx: report(ctx, wait_dropped), report, "programs_not_certified"
    ),
    Planted(
        "a threshold that is never reached", lambda ctx: report(ctx, threshold_raised), report, "programs_not_certified"
    ),
    Planted(
        "a signal is missing in the packets", lambda ctx: report(ctx, signal_dropped), report, "programs_not_certified"
    ),
    Planted(
        "packets changed after certification",
        lambda ctx: report(ctx, tamper=rewritten_afterwards),
        report,
        "packet_digest_matches",
    ),
    Planted(
        "the certificate is gone", lambda ctx: report(ctx, tamper=certificate_removed), report, "programs_not_certified"
    ),
    Planted(
        "a proof by sorry",
        lambda ctx: with_source(ctx, "Hole.lean", "prelude\nimport Base.Core\ntheorem hole : False := sorry\n"),
        report,
        "lean_findings",
    ),
    Planted(
        "an axiom of its own",
        lambda ctx: with_source(ctx, "Extra.lean", "prelude\nimport Base.Core\naxiom extra : False\n"),
        report,
        "lean_findings",
    ),
)

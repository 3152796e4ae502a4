"""The gate of stage 3: Lean's kernel certifies the bytes that run, with a library that has no holes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from plow.errors import PacketError, VerifyError
from plow.packet.container import PacketFile
from plow.verify import audit
from plow.verify.certificate import Certificate, certify, check_bundle
from plow.verify.library import compile_library, modules
from plow.verify.registry import CHECKPOINTS
from stages.base import Check, GateReport, StageContext
from stages.s3_lean.subject import Subject, compile_packets, fresh_cache

REQUIRED = ("D",)
"""Checkpoints that must be certified. The others of A-G are listed as not run."""
AXIOMS = {"propext", "Quot.sound", "Classical.choice"}
"""Stated here once more: the library's own list is under judgement."""
NOT_RUN = "checkpoint {letter} ({title}) not yet certified: {claim}"


def library(s: Subject) -> list[Check]:
    """The sources first: a library with a hole is not compiled at all."""
    findings = [f"{f.rule}: {f.text} [{f.where}]" for f in audit.scan(s.lean)]
    if not findings:
        try:
            findings = [f"{f.rule}: {f.text} [{f.where}]" for f in audit.inspect(compile_library(s.lean))]
        except VerifyError as e:
            findings = [e.line()]
    detail = "; ".join(findings[:3]) or f"{len(modules(s.lean))} modules, {len(audit.LISTED)} listed theorems"
    return [s.check("lean_findings", len(findings), detail)]


def certificates(s: Subject) -> list[Check]:
    """Certify, then look at the bundle as a runtime would."""
    packet = s.bundle / "model.pkt"
    want = {(p.rows, p.samples): p.num_packets for p in s.packets.programs}
    try:
        made = certify(packet, s.bundle / "certificates", REQUIRED)
        s.tamper(s.bundle)
        states = {c.checkpoint: c for c in check_bundle(s.bundle)}
    except (VerifyError, PacketError) as e:
        return _certificate_checks(s, len(want), e.line(), "", set())
    digest = hashlib.sha256(packet.read_bytes()).hexdigest()
    bound = {states[letter].packet_sha256 for letter in REQUIRED}
    bad = [
        f"{letter}: {states[letter].verdict} {states[letter].reason}"
        for letter in REQUIRED
        if states[letter].verdict != "certified"
    ]
    missing = len(want) - min(_certified(states[letter], want) for letter in REQUIRED)
    axioms = {a for c in made for p in c.programs for a in p["axioms"]}
    detail = "; ".join(bad) or ", ".join(f"{c.checkpoint} {len(c.programs)} programs in {c.seconds} s" for c in made)
    return _certificate_checks(s, missing, detail, digest if bound == {digest} else "", axioms)


def _certified(c: Certificate, want: dict[tuple[int, int], int]) -> int:
    """Programs of the packet file that the certificate names as certified."""
    if c.verdict != "certified":
        return 0
    titles = {p["title"] for p in c.programs if p["verdict"] == "certified" and AXIOMS.issuperset(p["axioms"])}
    return sum(f"T={rows} S={samples}" in titles for rows, samples in want)


def _certificate_checks(s: Subject, missing: int, detail: str, digest: str, axioms: set[str]) -> list[Check]:
    total = len(s.packets.programs)
    packets = sum(p.num_packets for p in s.packets.programs)
    return [
        s.check("programs_not_certified", missing, detail),
        s.check("programs_certified", total - missing, f"{packets} packets in {total} programs"),
        s.check("packet_digest_matches", bool(digest), f"sha256 {digest[:16]}" if digest else "bound to other bytes"),
        s.check("forbidden_axioms", len(axioms - AXIOMS), ", ".join(sorted(axioms)) or "none used"),
    ]


def corruptions(s: Subject) -> list[Check]:
    """Faults in the first program's payload, each alone, and the payload as it is."""
    first = PacketFile(s.packets.header, s.packets.programs[:1])
    try:
        outcome = s.self_test(first)
    except VerifyError as e:
        return [
            s.check("corruptions_accepted", 1, e.line()),
            s.check("corruptions_tried", 0),
            s.check("controls_rejected", 1, e.line()),
        ]
    lost = [c["name"] for c in outcome["cases"] if not c["ok"]]
    planted, controls = outcome["planted"], outcome["controls"]
    return [
        s.check("corruptions_accepted", planted - outcome["caught"], "; ".join(lost)),
        s.check("corruptions_tried", planted, f"of the program {first.programs[0].rows} rows"),
        s.check("controls_rejected", controls - outcome["controls_green"] + (controls == 0)),
    ]


def coverage(s: Subject) -> list[Check]:
    return [s.check("checkpoints_not_run", len(_not_run()), "listed as not run")]


def _not_run() -> list[str]:
    return [
        NOT_RUN.format(letter=c.letter, title=c.title, claim=c.claim)
        for c in CHECKPOINTS.values()
        if c.letter not in REQUIRED
    ]


PARTS: dict[Callable[[Subject], list[Check]], tuple[str, ...]] = {
    library: ("lean_findings",),
    certificates: ("programs_not_certified", "programs_certified", "packet_digest_matches", "forbidden_axioms"),
    corruptions: ("corruptions_accepted", "corruptions_tried", "controls_rejected"),
    coverage: ("checkpoints_not_run",),
}
CHECKS = tuple(name for names in PARTS.values() for name in names)


def gate(ctx: StageContext) -> GateReport:
    """Raises ToolMissing (no verdict) without Lean."""
    with fresh_cache(ctx.workdir / "cache"):
        return judge(Subject.of(ctx, compile_packets(ctx)))


def judge(s: Subject) -> GateReport:
    """A library with a hole certifies nothing, and a program that is not certified is no control: both end it."""
    only = s.ctx.params.get("only")
    checks: list[Check] = []
    for part, names in PARTS.items():
        if only in (None, *names):
            checks += part(s)
        if part in (library, certificates) and not all(c.ok for c in checks):
            break
    return GateReport(3, checks, _not_run())

"""Certificates: Lean's verdict about a packet file, bound to the sha256 of its bytes.

    certify(bundle/model.pkt, bundle/certificates)   writes D.json, or raises VerifyError
    check_bundle(bundle)                             says for each of A-G: certified, not_run, missing, stale, rejected
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from plow.errors import PacketError, VerifyError
from plow.packet import container
from plow.verify.checkpoint import ALLOWED_AXIOMS, Checkpoint, Subject
from plow.verify.library import Library, compile_library, digest, source_root
from plow.verify.registry import CHECKPOINTS

SCHEMA = "plow.certificate/1"
TIMEOUT = 300.0
"""Seconds a payload: 300 packets take 0.5, 3,800 packets of 64 workers 8 (CPU time on an EPYC, November 2026)."""
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Verdict:
    """What Lean said about one subject. axioms: of the theorem `certified`; reason: of a rejection."""

    title: str
    payload_sha256: str
    counts: dict[str, int]
    verdict: str
    seconds: float
    axioms: tuple[str, ...] = ()
    reason: str = ""


@dataclass(frozen=True)
class Certificate:
    """verdict: certified, rejected, stale (about other bytes or another library), missing or not_run."""

    checkpoint: str
    title: str
    claim: str
    verdict: str
    reason: str = ""
    theorem: str = ""
    axioms: tuple[str, ...] = ()
    packet_sha256: str = ""
    lean: str = ""
    library_sha256: str = ""
    seconds: float = 0.0
    programs: tuple[dict[str, Any], ...] = field(default_factory=tuple)
    schema: str = SCHEMA

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1, sort_keys=True) + "\n"


def judge(library: Library, checkpoint: Checkpoint, subject: Subject, timeout: float = TIMEOUT) -> Verdict:
    """Let Lean decide about one payload. Certified means: exit code 0, no error or warning, and the theorem
    `certified` rests on the allowed axioms only."""
    source = checkpoint.source(subject)
    sha256 = hashlib.sha256(source.encode()).hexdigest()
    run = library.run(source, timeout)
    axioms = printed_axioms([m.text for m in run.messages], f"{checkpoint.namespace}.certified")
    seconds = round(run.seconds, 3)
    if run.clean and axioms is not None and ALLOWED_AXIOMS.issuperset(axioms):
        return Verdict(subject.title, sha256, subject.counts, "certified", seconds, tuple(axioms))
    reason = _reason(library, checkpoint, subject, timeout)
    if not reason:
        reason = f"axioms {axioms}" if run.clean else run.summary()
    return Verdict(subject.title, sha256, subject.counts, "rejected", seconds, tuple(axioms or ()), reason)


def printed_axioms(texts: list[str], theorem: str) -> list[str] | None:
    """The answer to `#print axioms theorem`; None unless there is exactly one answer."""
    answers = [t for t in texts if t.startswith(f"'{theorem}' ")]
    if len(answers) != 1:
        return None
    if answers[0].rstrip() == f"'{theorem}' does not depend on any axioms":
        return []
    listed = re.fullmatch(r"'\S+' depends on axioms: \[(.*)\]\s*", answers[0], re.S)
    return [a.strip() for a in listed.group(1).split(",")] if listed else None


def _reason(library: Library, checkpoint: Checkpoint, subject: Subject, timeout: float) -> str:
    """The first fault that Lean confirms; "" if there is none."""
    for fault in checkpoint.diagnose(subject)[:1]:
        if library.run(checkpoint.refutation(subject, fault), timeout).clean:
            return fault.message
    return ""


def judge_all(library: Library, checkpoint: Checkpoint, subjects: Sequence[Subject],
              progress: Progress = lambda line: None) -> list[Verdict]:
    """Judge several payloads, two Lean processes at a time; equal payloads once."""
    sources = {checkpoint.source(s): s for s in subjects}
    done = 0

    def one(s: Subject) -> Verdict:
        nonlocal done
        verdict = judge(library, checkpoint, s)
        done += 1
        progress(f"lean: checkpoint {checkpoint.letter} {s.title}: {verdict.verdict} in {verdict.seconds} s "
                 f"({done} of {len(sources)} distinct payloads)")
        return verdict

    with ThreadPoolExecutor(max_workers=min(2, os.cpu_count() or 1)) as pool:
        verdicts = dict(zip(sources, pool.map(one, sources.values()), strict=True))
    return [Verdict(**{**vars(verdicts[checkpoint.source(s)]), "title": s.title}) for s in subjects]


def certify(packet_file: Path | str, out_dir: Path | str, checkpoints: Sequence[str] = ("D",),
            progress: Progress = lambda line: None) -> list[Certificate]:
    """Certify a packet file and write out_dir/<letter>.json for each checkpoint.

    Raises VerifyError when a payload cannot be built or Lean rejects it (an old certificate is removed first),
    ToolMissing without Lean, PacketError for a damaged file.
    """
    packet_file, out_dir = Path(packet_file), Path(out_dir)
    file = container.load(packet_file)
    sha256 = hashlib.sha256(packet_file.read_bytes()).hexdigest()
    out_dir.mkdir(parents=True, exist_ok=True)
    for letter in checkpoints:
        (out_dir / f"{letter}.json").unlink(missing_ok=True)
    library = compile_library(progress=progress)
    found = []
    for letter in checkpoints:
        checkpoint = _checkpoint(letter)
        start = time.perf_counter()
        verdicts = judge_all(library, checkpoint, checkpoint.build(file) if checkpoint.build else [], progress)
        for v in verdicts:
            if v.verdict != "certified":
                raise VerifyError(f"Lean rejects checkpoint {letter}: {v.reason}", f"{packet_file} {v.title}",
                                  "the program must not run: report it with the bundle")
        axioms = tuple(sorted({a for v in verdicts for a in v.axioms}))
        certificate = Certificate(
            letter, checkpoint.title, checkpoint.claim, "certified", theorem=checkpoint.theorem, axioms=axioms,
            packet_sha256=sha256, lean=f"{library.lean.source}: {library.lean.build}", library_sha256=library.sha256,
            seconds=round(time.perf_counter() - start, 2), programs=tuple(asdict(v) for v in verdicts))
        (out_dir / f"{letter}.json").write_text(certificate.to_json(), encoding="utf-8")
        found.append(certificate)
    return found


def _checkpoint(letter: str) -> Checkpoint:
    checkpoint = CHECKPOINTS.get(letter)
    if checkpoint is None or checkpoint.build is None:
        able = ", ".join(c.letter for c in CHECKPOINTS.values() if c.build)
        raise VerifyError(f"checkpoint {letter} cannot be certified yet", "--checkpoints", f"choose among {able}")
    return checkpoint


def check_bundle(bundle_dir: Path | str) -> list[Certificate]:
    """The state of every checkpoint A-G of a bundle, in order. Certificates are compared with the packet bytes, with
    the payloads built anew from them and with the Lean sources; Lean itself is not run (that is `certify`).

    Raises PacketError when the packet file is missing or damaged.
    """
    bundle_dir = Path(bundle_dir)
    path = bundle_dir / "model.pkt"
    file = container.load(path)
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    states = []
    for c in CHECKPOINTS.values():
        if c.build is None:
            states.append(Certificate(c.letter, c.title, c.claim, "not_run", "no payload is built for it yet"))
            continue
        saved = _read(bundle_dir / "certificates" / f"{c.letter}.json")
        verdict, reason = _compare(c, saved, file, sha256)
        known = {k: v for k, v in saved.items() if k in Certificate.__dataclass_fields__}
        states.append(Certificate(**{**known, "checkpoint": c.letter, "title": c.title, "claim": c.claim,
                                     "verdict": verdict, "reason": reason}))
    return states


def _read(path: Path) -> dict[str, Any]:
    try:
        saved = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return saved if isinstance(saved, dict) else {}


def _compare(c: Checkpoint, saved: dict[str, Any], file: container.PacketFile, sha256: str) -> tuple[str, str]:
    """(verdict, reason) of a stored certificate."""
    if not saved or saved.get("schema") != SCHEMA:
        return "missing", f"there is no certificate of schema {SCHEMA}"
    if saved.get("packet_sha256") != sha256:
        return "stale", "it is about other packet bytes"
    if saved.get("library_sha256") != digest(source_root()) or saved.get("theorem") != c.theorem:
        return "stale", "it was made with other Lean sources"
    programs = saved.get("programs")
    if saved.get("verdict") != "certified" or not isinstance(programs, list):
        return "rejected", str(saved.get("reason"))
    try:
        assert c.build is not None
        expected = [(s.title, hashlib.sha256(c.source(s).encode()).hexdigest()) for s in c.build(file)]
    except (VerifyError, PacketError) as e:
        return "rejected", e.line()
    if [(p.get("title"), p.get("payload_sha256")) for p in programs] != expected:
        return "rejected", f"it covers {len(programs)} payloads, the packet file has {len(expected)} (or others)"
    axioms = [p.get("axioms") for p in programs]
    if any(p.get("verdict") != "certified" for p in programs) or any(not ALLOWED_AXIOMS.issuperset(a) for a in axioms):
        return "rejected", "a program is not certified, or rests on other axioms"
    return "certified", ""

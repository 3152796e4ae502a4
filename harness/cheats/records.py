"""Cheats on the ledger and the evidence: removed, edited, forged, replayed, or about something else."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable

from harness import evidence, ledger
from harness.cheats import Cheat
from harness.cheats.sandbox import Sandbox
from harness.ledger import GENESIS, Ledger, Line, make_line

Lines = list[bytes]


def rewritten(change: Callable[[Lines], Lines]) -> Callable[[Sandbox], list[str]]:
    """Change the ledger's lines on disk and ask the guard."""

    def attempt(box: Sandbox) -> list[str]:
        box.ledger.write_bytes(b"".join(change(box.ledger.read_bytes().splitlines(keepends=True))))
        return box.guard()

    return attempt


def chained(lines: list[Line]) -> Lines:
    """The lines with sequence numbers and hashes that fit: a forgery that knows the format."""
    out: list[Line] = []
    for line in lines:
        out.append(make_line(len(out), out[-1].hash if out else GENESIS, line.kind, line.time, line.data))
    return [line.encode() for line in out]


def parsed(lines: Lines) -> list[Line]:
    return ledger.parse(b"".join(lines))[0]


def recorded(box: Sandbox) -> list[str]:
    """Honest: another gate run is appended, with its evidence."""
    box.bringup.gate(1)
    return box.guard()


def last_evidence(box: Sandbox) -> str:
    return str(parsed(box.ledger.read_bytes().splitlines(keepends=True))[-1].data["evidence"])


def ledger_removed(box: Sandbox) -> list[str]:
    box.ledger.unlink()
    return box.guard()


def evidence_removed(box: Sandbox) -> list[str]:
    (box.home / "evidence" / f"{last_evidence(box)}.json").unlink()
    return box.guard()


def evidence_edited(box: Sandbox) -> list[str]:
    path = box.home / "evidence" / f"{last_evidence(box)}.json"
    path.write_text(path.read_text().replace("0.0", "0.1"))
    return box.guard()


def evidence_by_hand(box: Sandbox) -> list[str]:
    document = evidence.get(box.home / "evidence", last_evidence(box))
    name = hashlib.sha256(b"looks right").hexdigest()
    (box.home / "evidence" / f"{name}.json").write_text(json.dumps(document))
    return box.guard()


def evidence_missing_on_disk(box: Sandbox) -> list[str]:
    (box.home / "evidence" / f"{last_evidence(box)}.json").unlink()
    return box.standing()


def stale_reused(box: Sandbox) -> list[str]:
    """The candidate changes; the green verdict of the old one is left standing."""
    box.candidate("1.0001")
    box.commit()
    return box.standing()


def append_verdict(box: Sandbox, **changes: object) -> list[str]:
    """Append a verdict like the last one, with other fields, through the ledger's own code."""
    with Ledger(box.ledger) as book:
        book.append("verdict", {**book.lines[-1].data, **changes})
    box.commit()
    return box.standing()


def relabelled(box: Sandbox) -> list[str]:
    """A new candidate, and a new ledger line that gives the old evidence its digest."""
    box.candidate("1.0", "\n\nNOTE = 'new'\n")
    commit = box.commit()
    return append_verdict(box, commit=commit, source_digest=box.subject().digest(box.stages[0]))


def invented(box: Sandbox) -> list[str]:
    """A failing candidate, with evidence written by hand whose checks are missing."""
    box.candidate("7.0")
    commit = box.commit()
    digest = box.subject().digest(box.stages[0])
    document = evidence.get(box.home / "evidence", last_evidence(box))
    fake = evidence.put(box.home / "evidence", {**document, "commit": commit, "source_digest": digest, "checks": []})
    return append_verdict(box, commit=commit, source_digest=digest, evidence=fake)


def orphaned(box: Sandbox) -> list[str]:
    """A verdict made at a commit that is then dropped from history."""
    box.candidate("1.0", "\n\nNOTE = 'elsewhere'\n")
    box.commit()
    box.bringup.gate(1)
    kept = box.ledger.read_bytes(), sorted((box.home / "evidence").iterdir())
    texts = {p: p.read_bytes() for p in kept[1]}
    from harness import git

    git.git(box.root, "reset", "--quiet", "--hard", box.base)
    box.candidate("1.0", "\n\nNOTE = 'elsewhere'\n")
    box.ledger.write_bytes(kept[0])
    for path, raw in texts.items():
        path.write_bytes(raw)
    box.commit()
    return box.standing()


def standing(box: Sandbox) -> list[str]:
    return box.standing()


def judged_again(box: Sandbox) -> list[str]:
    """Honest: the candidate changes, is committed, and is judged."""
    box.candidate("1.0", "\n\nNOTE = 'new'\n")
    box.commit()
    box.bringup.gate(1)
    return box.standing()


def green_over_red(lines: Lines) -> Lines:
    """Replace the last verdict by a better one and chain everything anew."""
    old = parsed(lines)
    better = {**old[-1].data, "headline": [["error", 0.0, "<=", 1e-9]]}
    return chained([*old[:-1], Line(0, "", "verdict", old[-1].time, better, "")])


CHEATS = [
    Cheat("ledger truncated", rewritten(lambda lines: lines[:-1]), recorded, "removed or edited"),
    Cheat("ledger line deleted", rewritten(lambda lines: lines[:2] + lines[3:]), recorded, "removed or edited"),
    Cheat(
        "ledger line deleted and rechained",
        rewritten(lambda lines: chained(parsed(lines)[:2] + parsed(lines)[3:])),
        recorded,
        "removed or edited",
    ),
    Cheat("ledger reordered", rewritten(lambda lines: [*lines[:-2], lines[-1], lines[-2]]), recorded, "reordered"),
    Cheat("ledger line replayed", rewritten(lambda lines: [*lines, lines[-1]]), recorded, "repeated"),
    Cheat(
        "ledger line edited",
        rewritten(lambda lines: [*lines[:-1], lines[-1].replace(b'"exit_code":0', b'"exit_code":1')]),
        recorded,
        "hash does not match",
    ),
    Cheat(
        "ledger line forged",
        rewritten(lambda lines: [*lines, make_line(len(lines), "0" * 64, "verdict", "", {}).encode()]),
        recorded,
        "does not chain",
    ),
    Cheat("ledger rewritten with a good chain", rewritten(green_over_red), recorded, "removed or edited"),
    Cheat("ledger removed", ledger_removed, recorded, "removed or edited"),
    Cheat("evidence removed", evidence_removed, recorded, "evidence file removed"),
    Cheat("evidence edited", evidence_edited, recorded, "evidence file edited"),
    Cheat("evidence under a made-up name", evidence_by_hand, recorded, "written by hand"),
    Cheat("evidence missing on disk", evidence_missing_on_disk, standing, "evidence file is missing"),
    Cheat("stale evidence left standing", stale_reused, judged_again, "stale"),
    Cheat("old evidence relabelled for new sources", relabelled, judged_again, "evidence says commit"),
    Cheat("evidence invented", invented, judged_again, "stored checks do not make it green"),
    Cheat("commit of the verdict dropped from history", orphaned, judged_again, "not in the history"),
]

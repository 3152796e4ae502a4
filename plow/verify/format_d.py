"""The payload of checkpoint D: what it holds, and how it is written for lean/CounterProtocol/Payload.lean.

    records    bytes 4..35 (worker, domain, seq, node, waits, signals) of every packet in the order of seq;
    totals     signals a step of each counter, as the packet file states them (the interpreter relies on them);
    lengths    packets of each worker's list;
    fans       required orders in bulk: a run of packets that must come before some others, and the counter that the
               run signals and the others wait for in full;
    witnesses  single required orders, each with a chain of enforced orders from end to end.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

from plow.packet.abi import NO_COUNTER, NUM_WAITS
from plow.verify.order import Sync

SYNC_BYTES = slice(4, 36)
RECORD_BYTES = 32
PIECE = 16
"""Packets in one literal of the Lean source: long literals parse in quadratic time."""
LINE = 50
"""Literals in one list of the Lean source."""
DIGIT_BYTES = 3
"""Base.Digits.radix = 2^24."""


@dataclass
class Witness:
    before: int
    after: int
    via: list[int]


@dataclass
class Fan:
    """Packets first..first+length-1 must come before each of afters; counter is the witness."""

    counter: int
    first: int
    length: int
    afters: list[int]


@dataclass
class PayloadD:
    """The payload of one program. names: "packet 7 LINEAR layer.0.up_proj", for messages only."""

    title: str
    records: list[bytes]
    totals: list[int]
    lengths: list[int]
    witnesses: list[Witness]
    fans: list[Fan]
    names: list[str] = field(default_factory=list)

    @property
    def counts(self) -> dict[str, int]:
        syncs = [sync_of(r) for r in self.records]
        return {"packets": len(self.records), "workers": len(self.lengths), "counters": len(self.totals),
                "waits": sum(len(s.waits) for s in syncs), "signals": sum(len(s.signals) for s in syncs),
                "orders": len(self.witnesses) + sum(f.length * len(f.afters) for f in self.fans),
                "fans": len(self.fans), "witnesses": len(self.witnesses),
                "longest_chain": max((len(w.via) + 1 for w in self.witnesses), default=0)}

    def lean(self) -> str:
        """The definition of `payload` in Lean."""
        pieces = [b"".join(self.records[i:i + PIECE]) for i in range(0, len(self.records), PIECE)]
        lines = [f"noncomputable def records : List Nat := [{', '.join(_literal(p) for p in pieces)}]"]
        witnesses = _list("witnesses", [witness_literal(w) for w in self.witnesses], lines)
        fans = _list("fans", [fan_literal(f) for f in self.fans], lines)
        lines.append(
            f"noncomputable def payload : Payload := ⟨nat_lit {len(self.records)}, join (nat_lit {PIECE}) records, "
            f"{_digits(self.totals)}, {_digits(self.lengths)}, "
            f"List.mapK witnessOf ({witnesses}), List.mapK fanOf ({fans})⟩")
        return "\n".join(lines) + "\n"


def _list(name: str, literals: list[str], lines: list[str]) -> str:
    """A List Nat, in definitions of LINE literals each that are added to lines."""
    rows = [literals[i:i + LINE] for i in range(0, len(literals), LINE)]
    lines += [f"noncomputable def {name}{k} : List Nat := [{', '.join(row)}]" for k, row in enumerate(rows)]
    return "".join(f"List.cat {name}{k} (" for k in range(len(rows))) + "[]" + ")" * len(rows)


def _literal(data: bytes) -> str:
    return f"nat_lit 0x{int.from_bytes(data, 'little'):x}"


def _digits(values: list[int]) -> str:
    return _literal(b"".join(v.to_bytes(DIGIT_BYTES, "little") for v in values))


def witness_literal(w: Witness) -> str:
    return _digits([w.before, w.after, len(w.via), *w.via])


def fan_literal(f: Fan) -> str:
    return _digits([f.counter, f.first, f.length, len(f.afters), *f.afters])


def sync_of(record: bytes) -> Sync:
    """Decode a payload record (bytes 4..35 of a packet); waits and signals end at the first unused slot."""
    waits, signals = slots_of(record)
    used_waits = itertools.takewhile(lambda wait: wait[0] != NO_COUNTER, waits)
    used_signals = itertools.takewhile(lambda c: c != NO_COUNTER, signals)
    return Sync(int.from_bytes(record[:2], "little"), list(used_waits), list(used_signals))


def slots_of(record: bytes) -> tuple[list[tuple[int, int]], list[int]]:
    """All wait slots (counter, threshold) and signal slots, used or not."""
    u16 = [int.from_bytes(record[i:i + 2], "little") for i in range(0, RECORD_BYTES, 2)]
    return [(u16[6 + 2 * k], u16[7 + 2 * k]) for k in range(NUM_WAITS)], u16[14:16]


def has_gap(counters: list[int]) -> bool:
    """A slot is used after one that is not."""
    used = [c != NO_COUNTER for c in counters]
    return used != sorted(used, reverse=True)

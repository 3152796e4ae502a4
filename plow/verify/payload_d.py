"""Checkpoint D, the counter protocol: the payload that Lean's kernel checks, built from the bytes of a packet file.

The payload of a program holds, for lean/CounterProtocol/Payload.lean:
  records    bytes 4..35 (worker, domain, seq, node, waits, signals) of every packet in the order of seq;
  totals     signals a step of each counter, as the packet file states them (the interpreter relies on them);
  lengths    packets of each worker's list;
  fans       (counter, packet): everything that signals the counter must come before the packet;
  witnesses  (packet, packet) with a chain of enforced orders (plow.verify.order) between them.
Fans and witnesses together list every required order of plow.verify.hazards.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from plow.errors import VerifyError
from plow.packet.abi import NO_COUNTER, NUM_WAITS, Opcode
from plow.packet.codec import Packet, decode
from plow.packet.container import PacketFile, ProgramRecord
from plow.verify.checkpoint import Checkpoint, Fault
from plow.verify.diagnose_d import diagnose
from plow.verify.hazards import Hazard, packet_effects, required
from plow.verify.order import Order, Sync

SYNC_BYTES = slice(4, 36)
RECORD_BYTES = 32
PIECE = 16
"""Packets in one literal of the Lean source: long literals parse in quadratic time."""
LINE = 50
"""Witnesses in one list literal."""
DIGIT_BYTES = 3
"""Base.Digits.radix = 2^24."""
REBUILD = "this is a compiler bug: report it with the bundle"


@dataclass
class Witness:
    before: int
    after: int
    via: list[int]


@dataclass
class PayloadD:
    """The payload of one program. names: "packet 7 LINEAR layer.0.up_proj", for messages only."""

    title: str
    records: list[bytes]
    totals: list[int]
    lengths: list[int]
    witnesses: list[Witness]
    fans: list[tuple[int, int]]
    names: list[str] = field(default_factory=list)

    @property
    def counts(self) -> dict[str, int]:
        syncs = [sync_of(r) for r in self.records]
        return {"packets": len(self.records), "workers": len(self.lengths), "counters": len(self.totals),
                "waits": sum(len(s.waits) for s in syncs), "signals": sum(len(s.signals) for s in syncs),
                "fans": len(self.fans), "witnesses": len(self.witnesses),
                "longest_chain": max((len(w.via) + 1 for w in self.witnesses), default=0)}

    def faults(self) -> list[Fault]:
        """See plow.verify.diagnose_d."""
        seqs = [int.from_bytes(r[4:8], "little") for r in self.records]
        return diagnose(self, [sync_of(r) for r in self.records], seqs)

    def lean(self) -> str:
        """The definition of `payload` in Lean."""
        pieces = [b"".join(self.records[i:i + PIECE]) for i in range(0, len(self.records), PIECE)]
        lines = [f"noncomputable def records : List Nat := [{', '.join(_literal(p) for p in pieces)}]"]
        rows = [self.witnesses[i:i + LINE] for i in range(0, len(self.witnesses), LINE)]
        for k, row in enumerate(rows):
            lines.append(f"noncomputable def orders{k} : List Nat := [{', '.join(witness_literal(w) for w in row)}]")
        orders = _cat([f"orders{k}" for k in range(len(rows))])
        fans = _cat([f"(fansOf (nat_lit {len(f)}) ({_digits([x for pair in f for x in pair])}))"
                     for f in (self.fans[i:i + LINE] for i in range(0, len(self.fans), LINE))])
        lines.append(
            f"noncomputable def payload : Payload := ⟨nat_lit {len(self.records)}, join (nat_lit {PIECE}) records, "
            f"{_digits(self.totals)}, {_digits(self.lengths)}, List.mapK witnessOf ({orders}), {fans}⟩")
        return "\n".join(lines) + "\n"


def _cat(lists: list[str]) -> str:
    return "".join(f"List.cat {x} (" for x in lists) + "[]" + ")" * len(lists)


def _literal(data: bytes) -> str:
    return f"nat_lit 0x{int.from_bytes(data, 'little'):x}"


def _digits(values: list[int]) -> str:
    return _literal(b"".join(v.to_bytes(DIGIT_BYTES, "little") for v in values))


def witness_literal(w: Witness) -> str:
    return _digits([w.before, w.after, len(w.via), *w.via])


def sync_of(record: bytes) -> Sync:
    """Decode a payload record (bytes 4..35 of a packet)."""
    u16 = [int.from_bytes(record[i:i + 2], "little") for i in range(0, RECORD_BYTES, 2)]
    waits = [(u16[6 + 2 * k], u16[7 + 2 * k]) for k in range(NUM_WAITS)]
    return Sync(u16[0], [(c, t) for c, t in waits if c != NO_COUNTER], [c for c in u16[14:16] if c != NO_COUNTER])


def build(file: PacketFile) -> list[PayloadD]:
    """One payload a program. Raises VerifyError when two conflicting packets are not ordered, or the lists are not
    increasing in seq, naming the packets."""
    return [build_program(p, file) for p in file.programs]


def build_program(program: ProgramRecord, file: PacketFile) -> PayloadD:
    title = f"T={program.rows} S={program.samples}"
    _check_lists(program, title)
    raw = program.by_seq()
    packets = [decode(r) for r in raw]
    names = [_name(p, file.nodes) for p in packets]
    syncs = [Sync(p.worker, p.waits, p.signals) for p in packets]
    order = Order(syncs, program.counter_totals)
    blocks = file.header["limits"]["num_kv_blocks"]
    witnesses: list[Witness] = []
    fans: set[tuple[int, int]] = set()
    for h in required([packet_effects(p, blocks) for p in packets], [p.worker for p in packets]):
        counter = order.direct(h.before, h.after)
        if counter is not None:
            fans.add((counter, h.after))
            continue
        via = order.chain(h.before, h.after)
        if via is None:
            raise _unordered(h, names, title)
        witnesses.append(Witness(h.before, h.after, via))
    records = [r.tobytes()[SYNC_BYTES] for r in raw]
    return PayloadD(title, records, list(program.counter_totals), [len(x) for x in program.lists], witnesses,
                    sorted(fans, key=lambda f: (f[1], f[0])), names)


def _check_lists(program: ProgramRecord, title: str) -> None:
    for worker, packets in enumerate(program.lists):
        seqs = [int(s) for s in packets["seq"]]
        if any(a >= b for a, b in zip(seqs, seqs[1:], strict=False)):
            raise VerifyError(f"the list of worker {worker} does not increase in seq", title, REBUILD)
        if any(int(w) != worker for w in packets["worker"]):
            raise VerifyError(f"the list of worker {worker} holds a packet of another worker", title, REBUILD)
    if sorted(int(p["seq"]) for x in program.lists for p in x) != list(range(program.num_packets)):
        raise VerifyError("seq does not number the packets 0, 1, 2, ...", title, REBUILD)


def _name(p: Packet, nodes: list[str]) -> str:
    node = nodes[p.node] if p.node < len(nodes) else f"node {p.node}"
    return f"packet {p.seq} {p.opcode.name}" + ("" if p.opcode == Opcode.NOP else f" {node}") + f" (worker {p.worker})"


def _unordered(h: Hazard, names: list[str], title: str) -> VerifyError:
    first, second = names[h.before], names[h.after]
    return VerifyError(
        f"{h.kind}: {second} may start before {first} has finished; both touch {h.where()} "
        f"({h.operands[0]}, then {h.operands[1]})", title, "no list and no counter with a full threshold orders them; " + REBUILD)


CHECKPOINT = Checkpoint(
    letter="D", title="counter protocol",
    claim="in runs of any number of steps no state is stuck, steps never overlap, and every packet starts only after "
          "all packets that it must follow have finished",
    theorem="CounterProtocol.sound", module="CounterProtocol.Checked", check="check payload",
    statement="Safe payload.program", build=build)

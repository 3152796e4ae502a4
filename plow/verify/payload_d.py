"""Checkpoint D, the counter protocol: the payload that Lean's kernel checks, built from the bytes of a packet file.

The payload of a program holds, for lean/CounterProtocol/Payload.lean:
  records    bytes 4..35 (worker, domain, seq, node, waits, signals) of every packet in the order of seq;
  totals     signals a step of each counter, as the packet file states them (the interpreter relies on them);
  lengths    packets of each worker's list;
  fans       required orders in bulk: a run of packets that must come before some others, and the counter that the run
             signals and the others wait for in full;
  witnesses  single required orders, each with a chain of enforced orders (plow.verify.order) from end to end.
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

    def faults(self) -> list[Fault]:
        """See plow.verify.diagnose_d."""
        seqs = [int.from_bytes(r[4:8], "little") for r in self.records]
        return diagnose(self, [sync_of(r) for r in self.records], seqs)

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
    direct: dict[tuple[int, int], list[int]] = {}
    for h in required([packet_effects(p, blocks) for p in packets], [p.worker for p in packets]):
        counter = order.direct(h.before, h.after)
        if counter is not None:
            direct.setdefault((counter, h.after), []).append(h.before)
            continue
        via = order.chain(h.before, h.after)
        if via is None:
            raise _unordered(h, names, title)
        witnesses.append(Witness(h.before, h.after, via))
    records = [r.tobytes()[SYNC_BYTES] for r in raw]
    return PayloadD(title, records, list(program.counter_totals), [len(x) for x in program.lists], witnesses,
                    _fans(direct, order), names)


def _fans(direct: dict[tuple[int, int], list[int]], order: Order) -> list[Fan]:
    """Group orders by counter and run of consecutive packets that signal it. direct: (counter, after) -> befores.

    A run may hold packets that do not conflict with all of `afters`; they are ordered all the same.
    """
    runs = {c: _runs(order.producers[c]) for c, _ in direct}
    fans: dict[tuple[int, int], Fan] = {}
    for (c, after), befores in direct.items():
        for run in runs[c]:
            if any(u in run for u in befores):
                fans.setdefault((c, run.start), Fan(c, run.start, len(run), [])).afters.append(after)
    return list(fans.values())


def _runs(numbers: list[int]) -> list[range]:
    """Maximal runs of consecutive integers of an increasing list."""
    runs: list[range] = []
    for n in numbers:
        if runs and runs[-1].stop == n:
            runs[-1] = range(runs[-1].start, n + 1)
        else:
            runs.append(range(n, n + 1))
    return runs


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

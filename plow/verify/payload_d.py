"""Checkpoint D, the counter protocol: payloads built from the decoded packets of a packet file.

The required orders come from the packets' memory effects (plow.verify.hazards); each is justified by the decoded waits
and signals (plow.verify.order), or the packet file is refused. `python -m plow.verify payload BUNDLE` prints a payload.
"""

from __future__ import annotations

import itertools

from plow.errors import VerifyError
from plow.packet.abi import Opcode
from plow.packet.codec import Packet, decode
from plow.packet.container import PacketFile, ProgramRecord
from plow.packet.effects import STREAM
from plow.verify.checkpoint import Checkpoint
from plow.verify.diagnose_d import diagnose
from plow.verify.format_d import SYNC_BYTES, Fan, PayloadD, Witness
from plow.verify.hazards import Hazard, packet_effects, required
from plow.verify.order import Order, Sync

REBUILD = "this is a compiler bug: report it with the bundle"


def build(file: PacketFile) -> list[PayloadD]:
    """One payload a program. Raises VerifyError when two conflicting packets are not ordered, or the lists are not
    increasing in seq, naming the packets, and for STREAM programs."""
    if any(int(op) in STREAM for p in file.programs for x in p.lists for op in x["opcode"]):
        raise VerifyError("checkpoint D does not cover published values yet", "model.pkt",
                          "leave STREAM programs uncertified")
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
    hazards = required([packet_effects(p, blocks) for p in packets], [p.worker for p in packets])
    witnesses, fans = justify(hazards, order, names, title)
    records = [r.tobytes()[SYNC_BYTES] for r in raw]
    return PayloadD(title, records, list(program.counter_totals), [len(x) for x in program.lists], witnesses,
                    fans, names)


def justify(hazards: list[Hazard], order: Order, names: list[str], title: str) -> tuple[list[Witness], list[Fan]]:
    """What enforces each required order. Raises VerifyError naming the packets when nothing does."""
    witnesses: list[Witness] = []
    direct: dict[tuple[int, int], list[int]] = {}
    for h in hazards:
        counter = order.direct(h.before, h.after)
        if counter is not None:
            direct.setdefault((counter, h.after), []).append(h.before)
            continue
        via = order.chain(h.before, h.after)
        if via is None:
            raise _unordered(h, names, title)
        witnesses.append(Witness(h.before, h.after, via))
    return witnesses, _fans(direct, order)


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
        if any(a >= b for a, b in itertools.pairwise(seqs)):
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
        f"({h.operands[0]}, then {h.operands[1]}) and no list or full counter orders them", title, REBUILD)


CHECKPOINT = Checkpoint(
    letter="D", title="counter protocol",
    claim="in runs of any number of steps no state is stuck, steps never overlap, and every packet starts only after "
          "all packets that it must follow have finished",
    theorem="CounterProtocol.sound", also=("CounterProtocol.DeadlockFree.completes", "Nat.Spec.div_mod"),
    module="CounterProtocol.Checked", check="check payload", statement="Safe payload.program", build=build,
    diagnose=diagnose)

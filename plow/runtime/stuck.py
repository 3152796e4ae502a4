"""What a wait that was never met says to a person."""

from __future__ import annotations

from collections.abc import Sequence

from plow.errors import StuckDependency
from plow.packet.abi import Opcode
from plow.packet.container import PacketFile


def stuck_dependency(packets: PacketFile, program: int, worker: int, at: Sequence[int], counter: int, have: int,
                     want: int) -> StuckDependency:
    """The typed error of a worker that waits in vain.

    at: index of the next packet of every worker's list when the step was given up; packets before it have signalled.
    Producers are the packets that signal `counter` and have not run.
    """
    record = packets.programs[program]
    packet = record.lists[worker][at[worker]]
    missing = [f"packet {int(p['seq'])} {Opcode(int(p['opcode'])).name} {_node(packets, int(p['node']))} (worker {w})"
               for w, packets_of in enumerate(record.lists) for p in packets_of[at[w]:] if counter in p["signals"]]
    text = f"{len(missing)} producers did not signal: {'; '.join(missing[:4])}{'; ...' if len(missing) > 4 else ''}"
    if not missing:
        text = "every producer has signalled: the threshold is too high"
    return StuckDependency(
        f"counter {counter} has {have}, wants {want}; {text}",
        f"T={record.rows} worker {worker} packet {int(packet['seq'])} {Opcode(int(packet['opcode'])).name} "
        f"{_node(packets, int(packet['node']))}", "the packet program is wrong: check it with plowc disasm")


def _node(packets: PacketFile, node: int) -> str:
    nodes = packets.header.get("nodes", [])
    return nodes[node] if node < len(nodes) else f"node {node}"

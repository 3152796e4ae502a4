"""A single-file HTML picture of a bundle: operators before and after fusion, tiles, and the schedule on a time line."""

from __future__ import annotations

from html import escape

from plow.graph import Graph
from plow.hw import Machine
from plow.packet.abi import Opcode
from plow.packet.codec import Packet, decode
from plow.packet.container import PacketFile, ProgramRecord
from plow.schedule.simulate import Simulation, simulate

COLOURS = {
    Opcode.EMBED: "#8d99ae",
    Opcode.NORM: "#b8a1d9",
    Opcode.LINEAR: "#4a7fb5",
    Opcode.QKV: "#2a9d8f",
    Opcode.ROPE: "#90be6d",
    Opcode.KV_APPEND: "#577590",
    Opcode.ATTENTION: "#e76f51",
    Opcode.ELEMENTWISE: "#f4a261",
    Opcode.SELECT: "#adb5bd",
    Opcode.SAMPLE: "#d62828",
    Opcode.NOP: "#dee2e6",
}
LANE, WIDTH, LEFT = 26, 1120, 70
STYLE = """body{font:14px system-ui,sans-serif;margin:2em auto;max-width:1240px;color:#1d1f24}h1{font-size:1.4em}h2{margin-top:2em;font-size:1.1em}
table{border-collapse:collapse;font-size:12px}td,th{padding:2px 9px;border-bottom:1px solid #e4e6ea;text-align:left;white-space:nowrap}
.two{display:flex;gap:3em;align-items:flex-start;flex-wrap:wrap}.op{margin:3px 0;padding:3px 9px;border-radius:5px;color:#fff;display:block;width:22em}
.dim{color:#6b7280}svg text{font:11px system-ui,sans-serif}svg rect:hover{stroke:#000}.key{display:inline-block;width:11px;height:11px;margin:0 4px 0 14px}
.scroll{overflow-x:auto}"""
BASE_OPCODE = {
    "embed": Opcode.EMBED,
    "rms_norm": Opcode.NORM,
    "linear": Opcode.LINEAR,
    "rope": Opcode.ROPE,
    "kv_append": Opcode.KV_APPEND,
    "attention": Opcode.ATTENTION,
    "select_rows": Opcode.SELECT,
}


def render(graph: Graph, file: PacketFile, program: ProgramRecord, machine: Machine, context: int = 512) -> str:
    """HTML text. graph: the model before rewriting; program: one of file's programs; machine: what times are predicted for."""
    sim = simulate(program, machine, context)
    packets = [decode(r) for r in program.by_seq()]
    block = _middle_block(file.nodes)
    body = [
        f"<h1>{escape(str(graph.meta['family']))}, {graph.meta['num_layers']} layers &mdash; program T={program.rows}</h1>",
        f"<p>{len(graph.nodes)} operators became {len(file.nodes)} nodes, {program.num_packets} packets on {len(program.lists)} workers with "
        f"{program.num_counters} counters. Predicted on <b>{escape(machine.name)}</b> at context {context}: {sim.step_s * 1e3:.3f} ms a step, "
        f"roofline {sim.bound_s * 1e3:.3f} ms, {sim.bytes / 1e6:.1f} MB moved.</p>",
        _key(),
        f"<h2>One block ({escape(block)}): operators, and the packets they became</h2>",
        '<div class="two">',
        _operators(graph, block),
        _block_packets(packets, file.nodes, block),
        "</div>",
        "<h2>Time line of one block</h2>",
        _timeline(sim, file.nodes, block),
        "<h2>Time line of the step</h2>",
        _timeline(sim, file.nodes, ""),
        "<h2>Where the step goes</h2>",
        _totals(sim),
        "<h2>Arena</h2>",
        _arena(file),
    ]
    return f'<!doctype html><html lang="en"><meta charset="utf-8"><title>plow graph</title><style>{STYLE}</style><body>{"".join(body)}</body></html>'


def _middle_block(nodes: list[str]) -> str:
    """The second layer's scope if there is one: the first packets of a step are not typical."""
    scopes = list(dict.fromkeys(".".join(n.split(".")[:2]) for n in nodes if n.startswith("layer.")))
    return scopes[min(1, len(scopes) - 1)] if scopes else ""


def _in_block(name: str, block: str) -> bool:
    return not block or name.startswith(block + ".")


def _key() -> str:
    return (
        "<p>"
        + "".join(f'<span class="key" style="background:{c}"></span>{o.name}' for o, c in COLOURS.items())
        + "</p>"
    )


def _operators(graph: Graph, block: str) -> str:
    rows = []
    for n in graph.nodes:
        if _in_block(n.name, block):
            colour = COLOURS[BASE_OPCODE.get(n.op, Opcode.ELEMENTWISE)]
            shape = ", ".join(str(graph.types[o]) for o in n.outputs)
            rows.append(
                f'<span class="op" style="background:{colour}">{escape(n.op)} <small>{escape(n.name)}<br>{escape(shape)}</small></span>'
            )
    return f"<div><h3>{len(rows)} operators</h3>{''.join(rows)}</div>"


def _block_packets(packets: list[Packet], nodes: list[str], block: str) -> str:
    head = "<tr><th>seq<th>worker<th>packet<th>node<th>tile<th>waits<th>signals</tr>"
    rows = []
    for p in packets:
        if _in_block(nodes[p.node], block):
            span = next(
                (f"{k[:-1]}s {p.dims[k]}..{p.dims[k[:-1] + '1']}" for k in ("unit0", "head0") if k in p.dims), ""
            )
            rows_text = f"rows {p.dims.get('row0', 0)}..{p.dims.get('row1', 0)}:{p.dims.get('row_step', 1)}"
            flags = " ".join(f.name.lower() for f in p.flags if f.name)
            rows.append(
                f'<tr><td>{p.seq}<td>{p.worker}<td style="color:{COLOURS[p.opcode]}"><b>{p.opcode.name}</b> <span class="dim">'
                f"{p.epilogue.name.lower() if p.epilogue else ''} {flags}</span><td>{escape(nodes[p.node])}<td>{rows_text} {span}"
                f"<td>{' '.join(f'c{c}&ge;{t}' for c, t in p.waits)}<td>{' '.join(f'c{c}' for c in p.signals)}</tr>"
            )
    return f'<div class="scroll"><h3>{len(rows)} packets</h3><table>{head}{"".join(rows)}</table></div>'


def _timeline(sim: Simulation, nodes: list[str], block: str) -> str:
    spans = [s for s in sim.spans if _in_block(nodes[s.node], block)]
    if not spans:
        return "<p>no packets</p>"
    start, end = min(s.start for s in spans), max(s.end for s in spans)
    scale = WIDTH / ((end - start) or 1.0)
    lanes = max(s.worker for s in spans) + 1
    boxes = [f'<text x="0" y="{w * LANE + 17}">worker {w}</text>' for w in range(lanes)]
    for s in spans:
        tip = f"{nodes[s.node]} {s.opcode.name}: {(s.end - s.start) * 1e6:.2f} us, waited {s.wait_s * 1e6:.2f} us, {s.bytes / 1e3:.1f} kB, {s.flops / 1e6:.2f} MFLOP"
        boxes.append(
            f'<rect x="{LEFT + (s.start - start) * scale:.2f}" y="{s.worker * LANE + 3}" width="{max(0.4, (s.end - s.start) * scale):.2f}" '
            f'height="{LANE - 6}" fill="{COLOURS[s.opcode]}"><title>{escape(tip)}</title></rect>'
        )
    boxes.append(f'<text x="{LEFT}" y="{lanes * LANE + 14}">{(end - start) * 1e6:.1f} us in all</text>')
    return f'<div class="scroll"><svg width="{LEFT + WIDTH + 10}" height="{lanes * LANE + 20}">{"".join(boxes)}</svg></div>'


def _totals(sim: Simulation) -> str:
    totals: dict[str, list[float]] = {}
    for s in sim.spans:
        t = totals.setdefault(s.opcode.name, [0, 0.0, 0.0, 0.0, 0.0])
        for i, v in enumerate((1, s.end - s.start, s.wait_s, s.bytes, s.flops)):
            t[i] += v
    rows = "".join(
        f"<tr><td>{k}<td>{int(n)}<td>{busy * 1e6:.1f}<td>{wait * 1e6:.1f}<td>{moved / 1e6:.2f}<td>{flops / 1e6:.1f}</tr>"
        for k, (n, busy, wait, moved, flops) in sorted(totals.items(), key=lambda kv: -kv[1][1])
    )
    return f"<table><tr><th>opcode<th>packets<th>busy us (all workers)<th>waiting us<th>MB<th>MFLOP</tr>{rows}</table>"


def _arena(file: PacketFile) -> str:
    segments = file.header["arena"]["segments"]
    rows = "".join(f"<tr><td>{escape(k)}<td>{a:#x}<td>{n / 1e6:.1f} MB</tr>" for k, (a, n) in segments.items())
    return f"<table><tr><th>segment<th>offset<th>size</tr>{rows}</table>"

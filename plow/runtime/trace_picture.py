"""A traced step as a Perfetto file and as a picture of one layer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np

from plow.packet.abi import Opcode
from plow.packet.codec import Packet
from plow.runtime.trace_step import Leg, Step, Traced

CNAMES = {
    Opcode.STREAM_EMBED: "startup",
    Opcode.STREAM_LINEAR: "rail_response",
    Opcode.STREAM_NORM: "olive",
    Opcode.STREAM_ATTENTION: "rail_animation",
    Opcode.STREAM_HEAD: "thread_state_running",
    Opcode.STREAM_SAMPLE: "bad",
}
"""Colours of chrome://tracing, by its names for them; Perfetto colours by the events' names."""


@dataclass(frozen=True)
class Slice:
    """A packet as it is drawn, ns from the first mark. The slices of a worker follow each other: one begins where the
    one before ends at the earliest, though consumers and epilogue work on two packets at a time."""

    traced: Traced
    begin: int
    ready: int
    done: int
    end: int


def slices(worker: Iterable[Traced]) -> Iterator[Slice]:
    at = 0
    for p in worker:
        begin = at if p.start is None else max(at, p.start)
        ready = begin if p.ready is None else max(begin, p.ready)
        end = max(ready, p.end)
        yield Slice(p, begin, ready, min(end, max(ready, end if p.done is None else p.done)), end)
        at = end


def chrome_trace(steps: dict[str, Step], notes: dict[str, Any]) -> dict[str, Any]:
    """Trace Event Format (Perfetto, chrome://tracing): a process a program, by its title, a thread a worker, and a
    complete event a packet; microseconds from the step's first mark."""
    events: list[dict[str, Any]] = []
    for pid, (title, step) in enumerate(steps.items()):
        events.append({"ph": "M", "name": "process_name", "pid": pid, "args": {"name": title}})
        for tid, worker in enumerate(step.workers):
            events.append({"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": f"worker {tid}"}})
            events.append({"ph": "M", "name": "thread_sort_index", "pid": pid, "tid": tid, "args": {"sort_index": tid}})
            events += [_event(s, pid, tid) for s in slices(worker)]
    return {"traceEvents": events, "displayTimeUnit": "ns", "otherData": notes}


def _event(s: Slice, pid: int, tid: int) -> dict[str, Any]:
    p = s.traced
    opcode = p.packet.opcode
    times = {"wait_ns": p.wait, "work_ns": p.work, "publish_ns": p.publish}
    return {
        "ph": "X",
        "name": f"{opcode.name} {p.node}",
        "cat": opcode.name,
        "cname": CNAMES.get(opcode, "grey"),
        "pid": pid,
        "tid": tid,
        "ts": s.begin / 1e3,
        "dur": (s.end - s.begin) / 1e3,
        "args": {"seq": p.packet.seq, "opcode": opcode.name, "operator": p.family, "part": _part(p.packet)}
        | {"bytes": p.bytes}
        | {k: v for k, v in times.items() if v is not None},
    }


def _part(p: Packet) -> str:
    """What of its operator a packet computes."""
    d = p.dims
    if "tile0" in d:
        return f"tiles {d['tile0']}..{d['tile1']}"
    names = {"row": "row", "kv_head": "kv head", "split": "part"}
    return ", ".join(f"{text} {d[k]}" for k, text in names.items() if k in d)


COLOURS = {
    "embed": "#7d8597",
    "norm": "#b08968",
    "qkv": "#2a9d8f",
    "attention": "#e76f51",
    "o": "#e9b44c",
    "gate_up": "#3f74b5",
    "down": "#8e5ea2",
    "head": "#5c9e4a",
    "sample": "#c9184a",
}
OTHER, WAITING, INK = "#6c757d", "#d9dce1", "#22252b"
WIDTH, LEFT, TOP, LANE, SAMPLED, TICKS = 1060, 84, 92, 22, 16, 12


def layer_of(step: Step) -> tuple[str, list[Leg]]:
    """The middle layer of the program and its part of the critical path; without layers the whole step."""
    scopes = [".".join(n.split(".")[:2]) if n.count(".") > 1 else "" for n in step.nodes]
    layers = list(dict.fromkeys(s for s in scopes if s))
    if not layers:
        return "step", step.legs
    layer = layers[len(layers) // 2]
    return layer, [g for g in step.legs if scopes[g.node] == layer]


def timeline_svg(step: Step, title: str) -> str:
    """One layer on a sample of the workers, from the last publication before it to its own. Colour: the packet's work;
    pale: publication; grey: waiting for inputs or first weights."""
    layer, legs = layer_of(step)
    begin, end = legs[0].begin, max(legs[-1].end, legs[0].begin + 1)
    chosen = sorted({round(w) for w in np.linspace(0, len(step.workers) - 1, SAMPLED)})
    bottom = TOP + LANE * len(chosen)

    def x(ns: int) -> float:
        return LEFT + (min(max(ns, begin), end) - begin) / (end - begin) * WIDTH

    head = f"{layer}: {(end - begin) / 1e3:.1f} us of {step.ns / 1e3:.1f} us a step"
    body = [_text(LEFT, 20, head, 'font-size="15"'), _text(LEFT, 38, title), *_legend(legs)]
    for lane, w in enumerate(chosen):
        y = TOP + lane * LANE
        body.append(_text(LEFT - 8, y + 15, f"worker {w}", 'text-anchor="end"'))
        body += [_bars(s, y, x) for s in slices(step.workers[w]) if s.end > begin and s.begin < end]
    body += _axis(legs, begin, end, bottom, x)
    width, height = LEFT + WIDTH + 20, bottom + 40
    how = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}" role="img" font-size="12"'
    top = f'<svg xmlns="http://www.w3.org/2000/svg" {how} font-family="system-ui, sans-serif">'
    body = [top, f"<title>{escape(title)}</title>", '<rect width="100%" height="100%" fill="#ffffff"/>', *body]
    return "\n".join([*body, "</svg>"]) + "\n"


def _text(x: float, y: float, text: str, how: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{INK}" {how}>{escape(text)}</text>'


def _legend(legs: list[Leg]) -> list[str]:
    names = {g.family: COLOURS.get(g.family, OTHER) for g in legs} | {"waiting": WAITING}
    out, x = [], float(LEFT)
    for name, colour in names.items():
        out.append(f'<rect x="{x:.1f}" y="50" width="12" height="12" fill="{colour}"/>')
        out.append(_text(x + 17, 60, name))
        x += 36 + 7 * len(name)
    return [*out, _text(x, 60, "(pale: publishing its results)")]


def _bars(s: Slice, y: int, x: Callable[[int], float]) -> str:
    p, colour = s.traced, COLOURS.get(s.traced.family, OTHER)
    known = {"waited": p.wait, "worked": p.work, "published in": p.publish}
    tip = f"{p.name}, {_part(p.packet)}, {p.bytes / 1e3:.0f} kB" + "".join(
        f", {k} {v / 1e3:.2f} us" for k, v in known.items() if v is not None
    )
    bars = ((s.begin, s.ready, WAITING, 1.0), (s.ready, s.done, colour, 1.0), (s.done, s.end, colour, 0.45))
    return f"<g><title>{escape(tip)}</title>" + "".join(
        f'<rect x="{x(a):.2f}" y="{y + 2}" width="{x(b) - x(a):.2f}" height="{LANE - 4}" fill="{fill}" opacity="{o}"/>'
        for a, b, fill, o in bars if x(b) > x(a)
    ) + "</g>"  # fmt: skip


def _axis(legs: list[Leg], begin: int, end: int, bottom: int, x: Callable[[int], float]) -> list[str]:
    """Ticks in microseconds below, and above a line at each last publication, with the name of its operator."""
    out = []
    for g in legs:
        out.append(f'<line x1="{x(g.end):.2f}" y1="{TOP - 14}" x2="{x(g.end):.2f}" y2="{bottom}" stroke="{INK}" '
                   'stroke-dasharray="3 3" opacity="0.6"/>')  # fmt: skip
        if x(g.end) - x(g.begin) > 7 * len(g.family):
            out.append(_text((x(g.begin) + x(g.end)) / 2, TOP - 6, g.family, 'text-anchor="middle"'))
    steps = (m * 10**e for e in range(1, 9) for m in (1, 2, 5))
    tick = next(t for t in steps if (end - begin) / t <= TICKS)
    for at in range(0, end - begin + 1, tick):
        px = x(begin + at)
        out.append(f'<line x1="{px:.2f}" y1="{bottom}" x2="{px:.2f}" y2="{bottom + 5}" stroke="{INK}"/>')
        out.append(_text(px, bottom + 19, f"{at / 1e3:g}", 'text-anchor="middle"'))
    return [*out, _text(LEFT, bottom + 35, "us since the last publication before the layer")]

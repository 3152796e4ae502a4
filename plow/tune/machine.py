"""This machine, measured: a `Machine` for the cost model, and the mode of the moment for a round of measurements."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from plow.hw import Machine
from plow.runtime.build_cpu import build
from plow.runtime.cpu_probe import probe
from plow.tune.perfdata import cpu_name

PACKET_S = 7e-9
"""Fetch and dispatch of a packet (measured with empty packets: 6.8 ns)."""
MODE_BYTES = 128 << 20
QUIET_BUSY = 0.15
"""Share of the cores' time that others may use while something is measured."""
SAMPLE_S = 0.4
SINGLE_CORE_HOP_S = 1e-9
"""There is nobody to signal on one core; the cost model wants a positive number."""


def measure_machine(library: Path | None = None) -> Machine:
    """Ceilings of all usable cores, measured now (about 3 s and, without `library`, a build of the interpreter)."""
    p = probe(library)
    sources = dict.fromkeys(("read_bytes_per_s", "fp32_flops", "bf16_flops", "hop_s"), "measured")
    return Machine(
        name=f"{cpu_name()} x{int(p['threads'])}",
        workers=int(p["threads"]),
        read_bytes_per_s=p["read_bytes_per_s"],
        fp32_flops=p["fp32_flops"],
        bf16_flops=p["bf16_dot_flops"] or p["fp32_flops"],
        hop_s=p["hop_s"] or SINGLE_CORE_HOP_S,
        packet_s=PACKET_S,
        note=f"{datetime.now(UTC):%Y-%m-%d} plow.tune.machine.measure_machine, best of 5",
        sources={**sources, "packet_s": "estimated"},
    )


def best_of(first: Machine, *others: Machine) -> Machine:
    """The machine with the best of every measured number: what others do on it only ever makes a probe slower."""
    every = (first, *others)
    rates = {k: max(getattr(m, k) for m in every) for k in ("read_bytes_per_s", "fp32_flops", "bf16_flops")}
    return replace(first, hop_s=min(m.hop_s for m in every), **rates)


@cache
def _library() -> Path:
    """An interpreter for probing, built once a process and kept until it ends."""
    folder = Path(_FOLDER.name)
    return folder / build(folder)["file"]


_FOLDER = TemporaryDirectory(prefix="plow-probe-")


def machine_mode() -> dict[str, float]:
    """Read bandwidth and hop time right now: a shared machine changes mode within minutes, and only measurements of one
    mode may be compared."""
    p = probe(_library(), read_bytes=MODE_BYTES, repeats=2)
    return {k: p[k] for k in ("read_bytes_per_s", "read_bytes_per_s_one", "hop_s")}


def busy_share() -> float:
    """Share of all cores' time that anybody used during the next SAMPLE_S seconds (Linux; 0 where it is not known)."""
    before = _cpu_times()
    time.sleep(SAMPLE_S)
    after = _cpu_times()
    if before is None or after is None:
        return 0.0
    busy, total = (b - a for a, b in zip(before, after, strict=True))
    return busy / max(total, 1)


def wait_until_quiet(limit_s: float = 60.0) -> float:
    """Wait until nobody else computes; returns the last busy share: above QUIET_BUSY when the limit was hit."""
    deadline = time.monotonic() + limit_s
    while (share := busy_share()) > QUIET_BUSY and time.monotonic() < deadline:
        time.sleep(SAMPLE_S)
    return share


def _cpu_times() -> tuple[int, int] | None:
    """(busy, total) jiffies of all cores since boot; waiting for the disk and idling are not busy."""
    try:
        fields = [int(x) for x in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    except (OSError, ValueError, IndexError):
        return None
    return sum(fields) - fields[3] - fields[4], sum(fields)

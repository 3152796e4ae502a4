"""The seven stages of a bring-up, in order: IR, egglog, Lean, tuning, block, runtime, campaign.

Belongs here: one folder a stage (`sN_name/`) with its definition (`STAGE`), its work, its gates, its probes and its
`thresholds.toml`; `base.py` holds the dataclasses they share. Does not belong here: who runs a stage, in which order,
whether a verdict counts (harness/), and anything a served deployment needs (plow/). May import plow; never harness.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from stages.base import Stage


def _discover() -> list[Stage]:
    """STAGE of every folder `sN_name`, by number; the folder is the only place a stage is listed."""
    folders = sorted(p.parent.name for p in Path(__file__).parent.glob("s[0-9]*_*/__init__.py"))
    return sorted((import_module(f"stages.{name}").STAGE for name in folders), key=lambda s: s.number)


STAGES: list[Stage] = _discover()

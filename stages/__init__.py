"""The seven stages of a bring-up, in order: IR, egglog, Lean, tuning, block, runtime, campaign.

Belongs here: one folder a stage (`sN_name/`) with its definition (`STAGE`), its work, its gates, its probes and its
`thresholds.toml`; `base.py` holds the dataclasses they share. Does not belong here: who runs a stage, in which order,
whether a verdict counts (harness/), and anything a served deployment needs (plow/). May import plow; never harness.

`STAGES` is made when it is first asked for: importing `stages.base` must not run the code of any stage.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from stages.base import Stage

STAGES: list[Stage]


def __getattr__(name: str) -> Any:
    if name != "STAGES":
        raise AttributeError(f"module 'stages' has no attribute {name!r}")
    folders = sorted(p.parent.name for p in Path(__file__).parent.glob("s[0-9]*_*/__init__.py"))
    found = sorted((import_module(f"stages.{folder}").STAGE for folder in folders), key=lambda s: s.number)
    globals()["STAGES"] = found
    return found

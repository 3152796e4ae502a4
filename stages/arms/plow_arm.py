"""Arm: our bundle through the C interpreter. `python -m stages.arms.plow_arm BUNDLE`"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

from plow.runtime.bundle import load
from plow.runtime.cpu import CpuBackend
from plow.runtime.step import StepBatch
from stages.arms.protocol import serve


def command(bundle: Path) -> list[str]:
    """argv that starts the arm."""
    return [sys.executable, "-m", "stages.arms.plow_arm", str(bundle)]


class PlowArm:
    """Drives the backend without engine or server: prompts by the largest programs, decode in one call."""

    def __init__(self, bundle: Path) -> None:
        self.backend = CpuBackend(load(bundle, allow_uncertified=True))
        limits = self.backend.bundle.limits
        self.pages = np.arange(limits.max_slots * limits.blocks_per_seq, dtype=np.int32).reshape(limits.max_slots, -1)
        self.programs = sorted(((p.rows, p.samples, i) for i, p in enumerate(self.backend.bundle.packets.programs)))
        self.request: dict[str, Any] = {}

    def program(self, rows: int) -> int:
        return next(i for r, _, i in self.programs if r >= rows)

    def prompt(self, slot: int, ids: list[int]) -> int:
        """Process a prompt in chunks of the largest program; returns the greedy next token."""
        token, chunk = -1, self.programs[-1][0]
        for at in range(0, len(ids), chunk):
            part = ids[at : at + chunk]
            last = [len(part) - 1] if at + chunk >= len(ids) else []
            batch = StepBatch.greedy(part, range(at, at + len(part)), [slot] * len(part), last, self.pages)
            out = self.backend.run(self.program(len(part)), batch)
            token = int(out[0, 0]) if last else token
        return token

    def prepare(self, request: dict[str, Any]) -> None:
        self.request = request
        if request["what"] == "decode":
            self.first = [self.prompt(i, ids) for i, ids in enumerate(request["prompts"])]

    def go(self) -> list[list[int]]:
        prompts = self.request["prompts"]
        if self.request["what"] == "prompt":
            return [[self.prompt(0, prompts[0])]]
        n = len(prompts)
        batch = StepBatch.greedy(self.first, [len(p) for p in prompts], range(n), range(n), self.pages)
        return self.backend.run(self.program(n), batch, self.request["steps"]).T.tolist()


if __name__ == "__main__":
    arm = PlowArm(Path(sys.argv[1]))
    serve(arm.prepare, arm.go, {"arm": "plow", "manifest": arm.backend.bundle.manifest["packets"]["sha256"]})

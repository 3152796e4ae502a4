"""Arm: fused Triton kernels, six a layer, in one CUDA graph a step, chained by programmatic dependent launch.

Tiles are chosen at start by coordinate descent over the time of the whole step, so that what overlaps is in the choice.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from . import kernels
from .arm import FAILURES, Arm, brief, capture, replay_ms
from .hf import rope_tables
from .weights import Weights

TUNE_SECONDS = 45.0
GAIN = 0.998
"""A variant must be so much faster to be taken: choices do not follow noise."""
MAX_BATCH = 16
GEMV = (
    (4, 4, 1), (4, 4, 2), (2, 4, 2), (2, 4, 1), (1, 4, 4), (8, 4, 1), (8, 2, 1), (4, 8, 1), (2, 8, 1), (1, 8, 2),
    (16, 4, 1),
)  # fmt: skip
"""(rows, warps, 16-byte loads a thread and row) of a tile, gate and up counted together."""
PARTS = ((8, 64), (16, 32), (32, 32), (4, 64), (2, 64), (1, 64))
"""(parts of the context, positions of a tile), the first being the start."""


@dataclass(frozen=True)
class Tiles:
    """block_n rows and block_k columns a program at a time; stages: of the batched kernel's pipeline."""

    block_n: int
    block_k: int
    warps: int
    stages: int = 1


@dataclass(frozen=True)
class Product:
    """One projection with what is fused into it; n rows out, k columns in (see kernels.gemv)."""

    n: int
    k: int
    norm: bool = False
    gate: bool = False
    add: bool = False
    head: bool = False

    def tiles(self, batch: int) -> Iterator[Tiles]:
        """What the tuner tries, the first being the start. Every choice divides n and k."""
        found: dict[Tiles, None] = {}
        if batch == 1:
            for block_n, warps, span in GEMV:
                pairs = max(block_n // 2, 1) if self.gate else block_n
                found[self._fit(pairs, 256 * warps * span, warps)] = None
        else:
            for block_n in (32, 16, 64):
                for block_k in (256, 128):
                    for stages in (3, 4, 5):
                        found[self._fit(block_n, block_k, 4, stages)] = None
        yield from found

    def _fit(self, block_n: int, block_k: int, warps: int, stages: int = 1) -> Tiles:
        return Tiles(min(block_n, self.n & -self.n), min(block_k, self.k & -self.k), warps, stages)


class Fused(Arm):
    """Products accumulate in fp32, activations between kernels are bf16, the residual stream too."""

    def __init__(self, weights: Weights, batch: int, max_ctx: int) -> None:
        super().__init__(weights, batch, max_ctx)
        if batch > MAX_BATCH:
            raise ValueError(f"the kernels take a batch of up to {MAX_BATCH}")
        s, device = self.shape, weights.device
        width = s.heads * s.head_dim

        def buffer(*size: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
            return torch.zeros(*size, dtype=dtype, device=device)

        self.kv = buffer(s.layers, 2, batch, s.kv_heads, max_ctx, s.head_dim)
        self.cos, self.sin = rope_tables(s, max_ctx, device)
        self.x, self.qkv = buffer(batch, s.hidden), buffer(batch, s.qkv_rows)
        self.attended, self.h = buffer(batch, width), buffer(batch, s.ffn)
        self.logits = buffer(batch, s.vocab, dtype=torch.float32)
        self.best = buffer(batch, s.vocab, dtype=torch.float32)
        self.best_row = buffer(batch, s.vocab, dtype=torch.int32)
        self.products = {
            "down": Product(s.hidden, s.ffn, add=True),
            "gate_up": Product(s.ffn, s.hidden, norm=True, gate=True),
            "head": Product(s.vocab, s.hidden, norm=True, head=True),
            "qkv": Product(s.qkv_rows, s.hidden, norm=True),
            "o": Product(s.hidden, width, add=True),
        }
        self.plan = {name: next(p.tiles(batch)) for name, p in self.products.items()}
        (self.splits, self.block_t), self.pdl = PARTS[0], False

    def fill(self, kv: torch.Tensor) -> None:
        self.kv[:, :, :, :, : kv.shape[4]] = kv

    def seek(self, token: torch.Tensor, position: int) -> None:
        super().seek(token, position)
        self.x.copy_(self.weights.embed[self.token])

    def step(self) -> None:
        w = self.weights
        for p, kv in zip(w.layers, self.kv, strict=True):
            self._product("qkv", self.x, p.qkv, p.norm1, self.qkv)
            self._attend(kv, p.q_norm, p.k_norm)
            self._product("o", self.attended, p.o, p.norm1, self.x)
            self._product("gate_up", self.x, p.gate_up, p.norm2, self.h)
            self._product("down", self.h, p.down, p.norm2, self.x)
        self._product("head", self.x, w.head, w.norm, self.logits)
        hidden = self.shape.hidden
        kernels.sample[(self.batch,)](
            self.best, self.best_row, self.shape.vocab // self.plan["head"].block_n, w.embed, self.token, self.position,
            self.x, HIDDEN=hidden, BLOCK=8192, BLOCK_H=min(4096, 1 << (hidden - 1).bit_length()), PDL=self.pdl,
            num_warps=16, **self._launch(),
        )  # fmt: skip

    def _launch(self) -> dict[str, Any]:
        return {"launch_pdl": True} if self.pdl else {}

    def _product(self, name: str, x: torch.Tensor, w: torch.Tensor, gain: torch.Tensor, out: torch.Tensor) -> None:
        p, t = self.products[name], self.plan[name]
        what = {"N": p.n, "K": p.k, "NORM": p.norm, "GATE": p.gate, "ADD": p.add, "HEAD": p.head}
        how = {"BLOCK_N": t.block_n, "BLOCK_K": t.block_k, "PDL": self.pdl, "num_warps": t.warps, **self._launch()}
        args = (x, w, gain, out, self.best, self.best_row, self.shape.eps)
        if self.batch == 1:
            kernels.gemv[(p.n // t.block_n,)](*args, **what, **how)
        else:
            kernels.gemm[(p.n // t.block_n,)](*args, B=self.batch, STAGES=t.stages, **what, **how)

    def _attend(self, kv: torch.Tensor, q_norm: torch.Tensor, k_norm: torch.Tensor) -> None:
        s, rows = self.shape, self.batch * self.shape.heads
        part, top, total = self._parts()
        kernels.attend[(self.batch * s.kv_heads, self.splits)](
            self.qkv, kv[0], kv[1], self.position, self.cos, self.sin, q_norm, k_norm, self.attended, part, top, total,
            s.eps, s.head_dim**-0.5 * math.log2(math.e), self.max_ctx, HEADS=s.heads, KV_HEADS=s.kv_heads,
            D=s.head_dim, FUSED=True, QK_NORM=s.qk_norm, SPLITS=self.splits, BLOCK_T=self.block_t, PDL=self.pdl,
            num_warps=4, **self._launch(),
        )  # fmt: skip
        if self.splits > 1:
            kernels.combine[(rows,)](
                part, top, total, self.attended, D=s.head_dim, SPLITS=self.splits, PDL=self.pdl, num_warps=1,
                **self._launch(),
            )  # fmt: skip

    def _parts(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Partial results of the present number of splits: kept, as captured kernels know their addresses."""
        if getattr(self, "_parts_of", None) != self.splits:
            rows, device = self.batch * self.shape.heads, self.kv.device
            part = torch.zeros(rows, self.splits, self.shape.head_dim, dtype=torch.float32, device=device)
            top, total = torch.zeros(2, rows, self.splits, dtype=torch.float32, device=device)
            self._parts_of, self._kept = self.splits, (part, top, total)
        return self._kept

    # -- choices -------------------------------------------------------------------------------------------------------
    @torch.no_grad()
    def prepare(self, start: int) -> None:
        """PDL if it works, then tiles of each product and parts of the context, as long as TUNE_SECONDS allow."""
        until = time.perf_counter() + TUNE_SECONDS
        self.best_ms, self.tried = self._time(start), 1
        plain = self.best_ms
        try:
            self.pdl = True
            linked = self._time(start)
        except FAILURES as e:
            linked, self.note = math.inf, f"no PDL: {brief(e)}; "
        self.pdl, self.best_ms = (True, linked) if linked < plain else (False, plain)
        self._tune(start, until)
        self.note += f"PDL {self.pdl} ({plain:.4f} -> {linked:.4f} ms before tuning), {self.tried} variants, "
        self.note += f"splits {self.splits} x {self.block_t}, "
        self.note += ", ".join(f"{n} {t.block_n}x{t.block_k} w{t.warps} s{t.stages}" for n, t in self.plan.items())
        self._capture(start)

    def _tune(self, start: int, until: float) -> None:
        for parts in PARTS[1:]:
            kept, (self.splits, self.block_t) = (self.splits, self.block_t), parts
            if not self._better(start, until):
                self.splits, self.block_t = kept
        for name, product in self.products.items():
            for tiles in list(product.tiles(self.batch))[1:]:
                before, self.plan[name] = self.plan[name], tiles
                if not self._better(start, until):
                    self.plan[name] = before

    def _better(self, start: int, until: float) -> bool:
        """Whether the present choices are faster than the best so far. Not those that do not fit the SM, nor any when
        time is up."""
        if time.perf_counter() > until:
            return False
        self.tried += 1
        try:
            ms = self._time(start)
        except FAILURES:
            return False
        if ms > GAIN * self.best_ms:
            return False
        self.best_ms = ms
        return True

    def _time(self, start: int) -> float:
        self._capture(start)
        assert self.graph is not None
        return replay_ms(self.graph)

    def _capture(self, start: int) -> None:
        self.graph = None
        self.seek(self.token, start)
        self.graph = capture(self.step, warm=1)

    @torch.no_grad()
    def weaken(self, start: int) -> bool:
        """The same without programmatic dependent launch."""
        if not self.pdl:
            return False
        self.pdl = False
        self.note += "; fell back to launches without PDL"
        self._capture(start)
        return True

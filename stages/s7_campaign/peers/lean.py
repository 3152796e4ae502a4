"""Arm: a decoder in plain torch with fused matrices and a static cache, compiled without graph breaks, one CUDA graph.

Three functions are compiled (entry, layer, exit); all layers share the second, so compilation takes one layer's time.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from .arm import FAILURES, Arm, brief, capture, replay_ms
from .hf import rope_tables
from .weights import Weights

MODE = "max-autotune-no-cudagraphs"
"""Tunes blocks, and at batch 1 lowers products to fused reductions, which stream faster than the library's GEMV."""
SPLITS = (4, 8, 16)
Attention = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def rms_norm(x: torch.Tensor, gain: torch.Tensor, eps: float) -> torch.Tensor:
    """As Llama's: the statistic in fp32, rounded to x's type before the gain."""
    f = x.float()
    return (f * torch.rsqrt(f.square().mean(-1, keepdim=True) + eps)).to(x.dtype) * gain


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """RoPE of x: [..., head_dim] by one position's cos and sin: f32 [head_dim / 2]."""
    a, b = x.float().chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).to(x.dtype)


def masked_attention(q: torch.Tensor, kv: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
    """bf16 [batch, heads, head_dim]: q (same shape) over the whole cache [2, batch, kv_heads, max_ctx, head_dim],
    positions after `position` masked."""
    batch, heads, d = q.shape
    keys, values = kv[0], kv[1]
    grouped = q.view(batch, keys.shape[1], heads // keys.shape[1], d)
    scores = (grouped @ keys.transpose(-1, -2)).float() * d**-0.5
    late = torch.arange(keys.shape[2], device=q.device) > position
    p = scores.masked_fill(late, float("-inf")).softmax(-1).to(q.dtype)
    return (p @ values).view(batch, heads, d)


def greedy(logits: torch.Tensor) -> torch.Tensor:
    """i64 [batch]: arg-max of [batch, vocab] in two short stages; in one, a single SM would reduce the whole row."""
    batch, vocab = logits.shape
    chunk = min(vocab & -vocab, 256)
    best, where = logits.view(batch, vocab // chunk, chunk).max(-1)
    part = best.argmax(-1, keepdim=True)
    return (part * chunk + where.gather(1, part))[:, 0]


def entry(
    token: torch.Tensor, position: torch.Tensor, embed: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Hidden state [batch, hidden] and the position's cos and sin [head_dim / 2]."""
    return embed[token], cos[position][0], sin[position][0]


def layer_step(
    x: torch.Tensor, kv: torch.Tensor, position: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor,
    norm1: torch.Tensor, qkv: torch.Tensor, o: torch.Tensor, norm2: torch.Tensor, gate_up: torch.Tensor,
    down: torch.Tensor, q_norm: torch.Tensor, k_norm: torch.Tensor,
    *, head_dim: int, eps: float, qk_norm: bool, attention: Attention,
) -> torch.Tensor:  # fmt: skip
    """x: bf16 [batch, hidden] through one layer; appends to kv: bf16 [2, batch, kv_heads, max_ctx, head_dim]."""
    batch, kv_heads = x.shape[0], kv.shape[2]
    rows = F.linear(rms_norm(x, norm1, eps), qkv).view(batch, -1, head_dim)
    q, k, v = rows[:, : -2 * kv_heads], rows[:, -2 * kv_heads : -kv_heads], rows[:, -kv_heads:]
    if qk_norm:
        q, k = rms_norm(q, q_norm, eps), rms_norm(k, k_norm, eps)
    q, k = rotate(q, cos, sin), rotate(k, cos, sin)
    kv.index_copy_(3, position, torch.stack((k, v))[:, :, :, None])
    x = x + F.linear(attention(q, kv, position).reshape(batch, -1), o)
    gate, up = F.linear(rms_norm(x, norm2, eps), gate_up).chunk(2, -1)
    return x + F.linear(F.silu(gate) * up, down)


def leave(
    x: torch.Tensor, norm: torch.Tensor, head: torch.Tensor, token: torch.Tensor, position: torch.Tensor, *, eps: float
) -> torch.Tensor:
    """Logits [batch, vocab]; the greedy token and the next position go where the next step reads them."""
    logits = F.linear(rms_norm(x, norm, eps), head)
    token.copy_(greedy(logits))
    position.add_(1)
    return logits


class Lean(Arm):
    """compiled False: the same functions one kernel an operation, for tests without a GPU."""

    def __init__(self, weights: Weights, batch: int, max_ctx: int, compiled: bool = True) -> None:
        super().__init__(weights, batch, max_ctx)
        s, device = self.shape, weights.device
        self.compiled, self.masked = compiled, True
        self.kv = torch.zeros(s.layers, 2, batch, s.kv_heads, max_ctx, s.head_dim, dtype=torch.bfloat16, device=device)
        self.cos, self.sin = rope_tables(s, max_ctx, device)
        self._use(masked_attention)

    def _use(self, attention: Attention) -> None:
        s = self.shape
        run = partial(torch.compile, mode=MODE, fullgraph=True, dynamic=False) if self.compiled else as_it_is
        self.entry = run(entry)
        self.layer = run(partial_of(layer_step, head_dim=s.head_dim, eps=s.eps, qk_norm=s.qk_norm, attention=attention))
        self.leave = run(partial_of(leave, eps=s.eps))

    def fill(self, kv: torch.Tensor) -> None:
        self.kv[:, :, :, :, : kv.shape[4]] = kv

    @torch.no_grad()
    def step(self) -> None:
        w = self.weights
        x, cos, sin = self.entry(self.token, self.position, w.embed, self.cos, self.sin)
        for p, kv in zip(w.layers, self.kv, strict=True):
            x = self.layer(
                x, kv, self.position, cos, sin, p.norm1, p.qkv, p.o, p.norm2, p.gate_up, p.down, p.q_norm, p.k_norm
            )
        self.logits = self.leave(x, w.norm, w.head, self.token, self.position)

    @torch.no_grad()
    def prepare(self, start: int) -> None:
        if not self.compiled:
            return
        self._capture(self._faster_attention(start), start)

    def weaken(self, start: int) -> bool:
        """Masked attention instead of the flash decoding kernel."""
        if not self.compiled or self.masked:
            return False
        self.note += "; fell back to masked"
        self._capture(masked_attention, start)
        return True

    @torch.no_grad()
    def _capture(self, attention: Attention, start: int) -> None:
        self.masked = attention is masked_attention
        self._use(attention)
        self.seek(self.token, start)
        self.graph = capture(self.step, warm=3)

    def _faster_attention(self, start: int) -> Attention:
        """The attention whose pass over all layers' caches is fastest in a CUDA graph; note says what was tried."""
        self.seek(self.token, start)
        q = torch.randn(self.batch, self.shape.heads, self.shape.head_dim, device=self.kv.device).to(torch.bfloat16)
        found: dict[str, tuple[float, Attention]] = {}
        tried = []
        for name, attention in self._attentions().items():
            try:
                quick = torch.compile(attention, fullgraph=True, dynamic=False) if name == "masked" else attention
                found[name] = replay_ms(capture(partial(self._attend_all, quick, q))), attention
                tried.append(f"{name} {found[name][0]:.4f}")
            except FAILURES as e:
                tried.append(f"{name} failed: {brief(e)}")
        best = min(found, key=lambda n: found[n][0]) if found else "masked"
        self.note += f"{best} attention; ms of a pass over all layers: {', '.join(tried)}"
        return found[best][1] if found else masked_attention

    def _attend_all(self, attention: Attention, q: torch.Tensor) -> None:
        for kv in self.kv:
            attention(q, kv, self.position)

    def _attentions(self) -> dict[str, Attention]:
        """masked_attention, and flash decoding where Triton imports."""
        found: dict[str, Attention] = {"masked": masked_attention}
        try:
            from .flash import flash_decode
        except FAILURES as e:
            self.note = f"no flash decoding: {brief(e)}; "
            return found
        for n in SPLITS:
            found[f"flash/{n}"] = flash_of(flash_decode, n)
        return found


def as_it_is(f: Callable[..., Any]) -> Callable[..., Any]:
    return f


def flash_of(op: Any, splits: int) -> Attention:
    """The operator at a number of parts, as a function that the compiler traces."""

    def attention(q: torch.Tensor, kv: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        return op(q.contiguous(), kv, position, splits)

    return attention


def partial_of(f: Callable[..., Any], **fixed: Any) -> Callable[..., Any]:
    """functools.partial as a plain function: every torch.compile release traces one."""

    def call(*args: torch.Tensor) -> Any:
        return f(*args, **fixed)

    return call

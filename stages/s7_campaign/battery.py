"""The correctness battery: what a deployment must get right before its speed is worth a word."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from plow.oracle.client import HFOracle
from plow.oracle.metrics import common_prefix, kl, max_abs_error, nll
from plow.runtime.step import Backend, StepBatch


@dataclass(frozen=True)
class Battery:
    """equal_tokens: share of greedy tokens equal to HF fp32; logit_error: largest |difference|; kl, kl_hf_bf16: mean KL
    against HF fp32 of ours and of HF bf16 (nats); nll_error, nll_hf_bf16: |NLL - NLL of HF fp32|; batch_equal: rows of
    a batch whose logits are bitwise those alone; chunk_equal: a prompt in one chunk is bitwise token by token."""

    equal_tokens: float
    logit_error: float
    kl: float
    kl_hf_bf16: float
    nll_error: float
    nll_hf_bf16: float
    batch_equal: float
    chunk_equal: float


class Driver:
    """Runs sequences on a backend without an engine; one slot a sequence, blocks in order."""

    def __init__(self, backend: Backend) -> None:
        self.backend, self.limits = backend, backend.bundle.limits
        shape = (self.limits.max_slots, self.limits.blocks_per_seq)
        self.pages = np.arange(shape[0] * shape[1], dtype=np.int32).reshape(shape)
        self.programs = sorted((p.rows, i) for i, p in enumerate(backend.bundle.packets.programs))

    def program(self, rows: int) -> int:
        return next(i for r, i in self.programs if r >= rows)

    def rows(self, tokens: list[int], positions: list[int], slots: list[int], wanted: list[int]) -> np.ndarray:
        """Logits of the wanted rows of one step: f32 [len(wanted), vocab] (a copy)."""
        index = self.program(len(tokens))
        self.backend.run(index, StepBatch.greedy(tokens, positions, slots, wanted, self.pages))
        return self.backend.logits(index, len(wanted)).copy()

    def prompt(self, tokens: list[int], slot: int = 0, chunk: int | None = None) -> np.ndarray:
        """Logits after the prompt, f32 [vocab]; chunk: rows a step (default: the largest program)."""
        chunk = chunk or self.programs[-1][0]
        out = np.empty((0, 0), np.float32)
        for at in range(0, len(tokens), chunk):
            part = tokens[at : at + chunk]
            out = self.rows(part, list(range(at, at + len(part))), [slot] * len(part), [len(part) - 1])
        return out[0]

    def teacher_forced(self, tokens: list[int]) -> np.ndarray:
        """Logits at every position, token by token: f32 [len(tokens), vocab]."""
        return np.stack([self.rows([t], [i], [0], [0])[0] for i, t in enumerate(tokens)])

    def greedy(self, prompt: list[int], count: int) -> list[int]:
        token = int(self.prompt(prompt).argmax())
        batch = StepBatch.greedy([token], [len(prompt)], [0], [0], self.pages)
        return [token, *self.backend.run(self.program(1), batch, count - 1)[:, 0].tolist()]


def run(backend: Backend, checkpoint: Path, prompts: list[list[int]], text: list[int], count: int) -> Battery:
    """prompts: token ids for the greedy comparison; text: ids for teacher-forced logits; count: greedy tokens each."""
    d = Driver(backend)
    with HFOracle(checkpoint, "float32") as hf:
        truth = [hf.greedy(p, count).tokens for p in prompts]
        exact = hf.logits(text)
    with HFOracle(checkpoint, "bfloat16") as hf:
        rounded = hf.logits(text)
    ours = d.teacher_forced(text)
    vocab = min(ours.shape[1], exact.shape[1])
    ours, exact, rounded = ours[:, :vocab], exact[:, :vocab], rounded[:, :vocab]
    same = [common_prefix(d.greedy(p, count), t) / count for p, t in zip(prompts, truth, strict=True)]
    targets = np.array(text[1:])
    base = nll(exact[:-1], targets)
    return Battery(
        float(np.mean(same)),
        max_abs_error(exact, ours),
        float(kl(exact, ours).mean()),
        float(kl(exact, rounded).mean()),
        abs(nll(ours[:-1], targets) - base),
        abs(nll(rounded[:-1], targets) - base),
        batch_equal(d, prompts),
        chunk_equal(d, prompts[0]),
    )


def batch_equal(d: Driver, prompts: list[list[int]]) -> float:
    """Share of sequences whose next-step logits in a batch are bitwise those alone."""
    chosen = prompts[: d.limits.max_samples]
    first = [int(d.prompt(p, slot=i).argmax()) for i, p in enumerate(chosen)]
    positions = [len(p) for p in chosen]
    together = d.rows(first, positions, list(range(len(chosen))), list(range(len(chosen))))
    alone = [d.rows([t], [positions[i]], [i], [0])[0] for i, t in enumerate(first)]
    return float(
        np.mean([np.array_equal(a.view(np.uint32), b.view(np.uint32)) for a, b in zip(together, alone, strict=True)])
    )


def chunk_equal(d: Driver, prompt: list[int]) -> float:
    """1.0 if the prompt in one chunk and token by token give bitwise the same logits."""
    whole, single = d.prompt(prompt), d.prompt(prompt, chunk=1)
    return float(np.array_equal(whole.view(np.uint32), single.view(np.uint32)))

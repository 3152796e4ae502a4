"""A test double of the Backend protocol: no weights, but real KV blocks and a token that depends on all of them."""

from __future__ import annotations

import threading
import time
import zlib
from pathlib import Path

import numpy as np

from plow.errors import StuckDependency
from plow.packet.container import PacketFile, ProgramRecord
from plow.runtime.bundle import Bundle
from plow.runtime.sampler import sample
from plow.runtime.step import Limits, StepBatch

VOCAB = 320
STUCK = StuckDependency("counter 3 has 0, wants 2", "T=1 worker 0 packet 7 LINEAR", "test")


def next_logits(context: list[int], vocab: int = VOCAB) -> np.ndarray:
    """f32 [vocab]: a fixed function of the whole context."""
    return (
        np.random.default_rng(zlib.crc32(np.array(context, np.int32).tobytes()))
        .standard_normal(vocab)
        .astype(np.float32)
    )


def greedy(prompt: list[int], n: int, vocab: int = VOCAB) -> list[int]:
    """What a sequence must say, alone or in company."""
    context = list(prompt)
    for _ in range(n):
        context.append(int(next_logits(context, vocab).argmax()))
    return context[len(prompt) :]


class FakeBackend:
    """Positions' tokens live in `kv` [blocks, 16], reached only through the page table, as keys and values do.

    step_s: seconds a step takes; fail_at: number of the step that raises STUCK, gone: there is no
    recovery; forgetful: one that loses keys and values. Records the batches it was given.
    """

    def __init__(
        self,
        path: Path = Path("fake"),
        max_ctx: int = 64,
        max_slots: int = 4,
        rows: tuple[int, ...] = (1, 2, 4, 8, 16),
        num_kv_blocks: int | None = None,
        vocab: int = VOCAB,
        step_s: float = 0.0,
        fail_at: int = -1,
        gone: bool = False,
        forgetful: bool = False,
    ) -> None:
        per_seq = -(-max_ctx // 16)
        samples = [min(r, max_slots) for r in rows]
        limits = Limits(
            max_ctx, max_slots, max(rows), max(samples), num_kv_blocks or max_slots * per_seq, 16, vocab, 1, per_seq
        )
        programs = [ProgramRecord(r, s, [], [], 0, vocab) for r, s in zip(rows, samples, strict=True)]
        manifest = {
            "target": "cpu",
            "packets": {"file": "model.pkt", "sha256": "0" * 64},
            "eos_token_ids": [2],
            "files": {},
            "weights": {"file": "weights.bin", "sha256": "1" * 64},
            "interpreter": {"file": "interp.so", "sha256": "2" * 64},
        }
        self.bundle = Bundle(path, manifest, PacketFile({"target": "cpu", "nodes": []}, programs), limits, True)
        self.arena = np.zeros(1024, np.uint8)
        self.kv = np.full((limits.num_kv_blocks, 16), -1, np.int32)
        self.batches: list[StepBatch] = []
        self.programs: list[int] = []
        self.step_s, self.fail_at, self.gone, self.forgetful = step_s, fail_at, gone, forgetful
        self.recovered = 0
        self.threads: set[int] = set()
        self._logits = np.empty((0, vocab), np.float32)

    def run(self, program: int, batch: StepBatch, n_steps: int = 1) -> np.ndarray:
        limits, record = self.bundle.limits, self.bundle.packets.programs[program]
        batch.check(limits, record.rows, record.samples, n_steps)
        self.batches.append(batch)
        self.programs.append(program)
        self.threads.add(threading.get_ident())
        if len(self.batches) - 1 == self.fail_at:
            raise STUCK
        if self.step_s:
            time.sleep(self.step_s)
        tokens, positions, out = batch.tokens.copy(), batch.positions.copy(), []
        for _ in range(n_steps):
            blocks = batch.page_table[batch.slots, positions // 16]
            self.kv[blocks, positions % 16] = tokens
            self._logits = np.stack(
                [self._row(batch, int(r), positions) for r in batch.sample_rows] or [np.empty(limits.vocab_size)]
            )
            picked = [
                sample(
                    self._logits[i],
                    float(batch.temperature[i]),
                    int(batch.top_k[i]),
                    float(batch.top_p[i]),
                    float(batch.min_p[i]),
                    int(batch.seed[i]),
                    int(positions[r]),
                )
                for i, r in enumerate(batch.sample_rows)
            ]
            out.append(picked)
            if n_steps > 1:
                tokens = np.array(picked, np.int32)
                positions = positions + 1
        return np.array(out, np.int32).reshape(n_steps, batch.n_samples)

    def _row(self, batch: StepBatch, row: int, positions: np.ndarray) -> np.ndarray:
        p = np.arange(positions[row] + 1)
        context = self.kv[batch.page_table[batch.slots[row], p // 16], p % 16]
        return next_logits(context.tolist(), self.bundle.limits.vocab_size)

    def logits(self, program: int, n_samples: int) -> np.ndarray:
        return self._logits[:n_samples]

    steps_per_call = 1

    def recover(self) -> bool:
        self.recovered += 1
        if self.gone:
            raise StuckDependency("the device is gone", "fake")
        if self.forgetful:
            self.kv[:] = -1
        return not self.forgetful

    def close(self) -> None:
        pass

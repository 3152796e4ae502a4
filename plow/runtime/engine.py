"""Engine: continuous batching of requests over one backend.

A step is a mix of decode rows (one a running sequence) and prompt-chunk rows, run by the smallest program that fits:

    rows    | seq A: its last token | seq B: its last token | seq C: prompt tokens 128..255 |
    sampled |          yes          |          yes          | only if the chunk ends the prompt |
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np

from plow.errors import PlowError, RequestError
from plow.runtime.kv import BlockManager
from plow.runtime.metrics import Metrics
from plow.runtime.request import Event, Finish, Request, Timing, TokenLogprob
from plow.runtime.sampler import MASK64, log_softmax
from plow.runtime.step import Backend, StepBatch

CHUNK_ROWS = 128
"""Prompt rows a step while other sequences decode: bounds how long a new prompt delays their next tokens."""

CALL_S = 0.02
"""Seconds of a call of several steps: bounds how long an arriving request waits for its turn."""


@dataclass
class _Sequence:
    id: int
    request: Request
    max_tokens: int
    tokens: list[int]
    """Prompt and generated tokens."""
    timing: Timing
    slot: int = -1
    computed: int = 0
    """Positions whose keys and values are in the KV blocks."""

    @property
    def pending(self) -> int:
        return len(self.tokens) - self.computed

    @property
    def generated(self) -> int:
        return len(self.tokens) - len(self.request.prompt)


@dataclass(frozen=True)
class _Chunk:
    """Positions seq.computed .. seq.computed + rows of a sequence, computed in this step."""

    seq: _Sequence
    rows: int

    @property
    def sampled(self) -> bool:
        return self.rows == self.seq.pending


class Engine:
    """Synchronous: `add` requests, call `step` while `has_work`. Not thread-safe; `AsyncEngine` wraps it for servers.

    chunk_rows: see CHUNK_ROWS. steps_per_call: tokens that a pure decode batch may produce in one backend call while
    nobody waits; their events arrive together. 0: what the backend asks for, if a call then stays below CALL_S.
    """

    def __init__(self, backend: Backend, chunk_rows: int = CHUNK_ROWS, steps_per_call: int = 0) -> None:
        if chunk_rows < 1 or steps_per_call < 0:
            what = f"chunk_rows {chunk_rows}, steps_per_call {steps_per_call}"
            raise RequestError(what, "Engine", "chunk_rows is at least 1, steps_per_call at least 0")
        self.backend = backend
        self.limits = backend.bundle.limits
        self.chunk_rows, self.steps_per_call = chunk_rows, steps_per_call or backend.steps_per_call
        self._timed = steps_per_call == 0
        self._step_s: dict[int, float] = {}
        """Program -> seconds of a step of its last call."""
        self.blocks = BlockManager(self.limits)
        self.metrics = Metrics()
        self._programs = sorted((p.rows, p.samples, i) for i, p in enumerate(backend.bundle.packets.programs))
        self._ids = itertools.count()
        self._waiting: deque[_Sequence] = deque()
        self._running: list[_Sequence] = []

    @property
    def has_work(self) -> bool:
        return bool(self._waiting or self._running)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def running(self) -> int:
        return len(self._running)

    def add(self, request: Request) -> int:
        """Queue a request; returns its id. Raises RequestError when it can never be served."""
        max_tokens = request.check(self.limits)
        seq = _Sequence(next(self._ids), request, max_tokens, list(request.prompt), Timing(time.perf_counter()))
        self._waiting.append(seq)
        return seq.id

    def abort(self, request: int, reason: Finish = "abort") -> Event | None:
        """End a request now and free its blocks; None if it has already ended. reason "stop": its text is complete."""
        for seq in [*self._waiting, *self._running]:
            if seq.id == request:
                return self._finish(seq, None, reason)
        return None

    def abort_all(self) -> list[Event]:
        return [self._finish(seq, None, "abort") for seq in [*self._waiting, *self._running]]

    def has(self, request: int) -> bool:
        return any(s.id == request for s in [*self._waiting, *self._running])

    def step(self) -> list[Event]:
        """Admit, compute one batch, return its events. When the backend fails, the requests of that batch are dropped
        and the error is raised; the others go on, computed again from their tokens if need be."""
        self._admit()
        chunks = self._plan()
        if not chunks:
            return []
        batch = self._batch(chunks)
        program = self._program(batch)
        n_steps = self._steps(chunks, program)
        start = time.perf_counter()
        try:
            tokens = self.backend.run(program, batch, n_steps)
        except PlowError:
            self._drop([c.seq for c in chunks])
            raise
        self._step_s[program] = (time.perf_counter() - start) / n_steps
        self.metrics.steps += n_steps
        self.metrics.rows += n_steps * batch.n_rows
        logprobs = self._logprobs(chunks, program, tokens[0])
        return self._advance(chunks, tokens, logprobs)

    def snapshot(self) -> dict[str, Any]:
        """Load and metrics as plain numbers."""
        return {"waiting": self.waiting, "running": self.running, "used_blocks": self.blocks.used_blocks,
                "total_blocks": self.limits.num_kv_blocks, **self.metrics.snapshot()}

    # -- planning ------------------------------------------------------------------------------------------------------
    def _admit(self) -> None:
        """First come, first served: a request that does not fit yet holds back the ones behind it."""
        while self._waiting:
            seq = self._waiting[0]
            positions = len(seq.tokens) + seq.max_tokens
            if not self.blocks.can_allocate(positions):
                return
            self._waiting.popleft()
            seq.slot = self.blocks.allocate(positions)
            seq.timing.admitted = time.perf_counter()
            self.metrics.prompt_tokens += len(seq.request.prompt)
            self._running.append(seq)

    def _plan(self) -> list[_Chunk]:
        """Every decode row, then prompt chunks in order of arrival."""
        max_rows, max_samples, _ = self._programs[-1]
        decode = [_Chunk(s, 1) for s in self._running if s.pending == 1][:min(max_rows, max_samples)]
        budget = max_rows - len(decode)
        if decode:
            budget = min(budget, self.chunk_rows)
        chunks, samples = decode, len(decode)
        for seq in self._running:
            if seq.pending == 1 or budget == 0:
                continue
            rows = min(seq.pending, budget)
            if rows == seq.pending and samples == max_samples:
                rows -= 1  # its last row would need a sample that the program does not have
            if rows == 0:
                continue
            chunks.append(_Chunk(seq, rows))
            samples += rows == seq.pending
            budget -= rows
        return chunks

    def _batch(self, chunks: list[_Chunk]) -> StepBatch:
        tokens: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        sample_rows: list[int] = []
        for c in chunks:
            start = c.seq.computed
            tokens += c.seq.tokens[start:start + c.rows]
            positions += range(start, start + c.rows)
            slots += [c.seq.slot] * c.rows
            if c.sampled:
                sample_rows.append(len(tokens) - 1)
        batch = StepBatch.greedy(tokens, positions, slots, sample_rows, self.blocks.page_table)
        for i, c in enumerate(c for c in chunks if c.sampled):
            p = c.seq.request.sampling
            batch.temperature[i], batch.top_k[i] = p.temperature, p.top_k
            batch.top_p[i], batch.min_p[i], batch.seed[i] = p.top_p, p.min_p, p.seed & MASK64
        return batch

    def _program(self, batch: StepBatch) -> int:
        """The smallest program that fits."""
        for rows, samples, index in self._programs:
            if rows >= batch.n_rows and samples >= batch.n_samples:
                return index
        raise RequestError(f"no program takes {batch.n_rows} rows and {batch.n_samples} samples", "Engine",
                           "compile the bundle with more row buckets")

    def _steps(self, chunks: list[_Chunk], program: int) -> int:
        """Several steps in one call only for pure decode, with nobody waiting and no logits to look at."""
        pure = all(c.rows == 1 and c.sampled and c.seq.request.logprobs is None for c in chunks)
        if self.steps_per_call == 1 or self._waiting or not pure:
            return 1
        most = self.steps_per_call
        if self._timed:
            most = min(most, max(1, int(CALL_S / self._step_s.get(program, CALL_S))))
        return min(most, *(c.seq.max_tokens - c.seq.generated for c in chunks))

    # -- results -------------------------------------------------------------------------------------------------------
    def _logprobs(self, chunks: list[_Chunk], program: int, tokens: np.ndarray) -> dict[int, TokenLogprob]:
        """Of the sequences that asked for them, by sequence id. tokens: i32 [n_samples]."""
        sampled = [c.seq for c in chunks if c.sampled]
        asked = [(i, s) for i, s in enumerate(sampled) if s.request.logprobs is not None]
        if not asked:
            return {}
        logits = self.backend.logits(program, len(sampled))
        found = {}
        for i, seq in asked:
            values = log_softmax(logits[i])
            top = np.argsort(-values, kind="stable")[:seq.request.logprobs]
            token = int(tokens[i])
            found[seq.id] = TokenLogprob(token, float(values[token]), [(int(t), float(values[t])) for t in top])
        return found

    def _advance(self, chunks: list[_Chunk], tokens: np.ndarray, logprobs: dict[int, TokenLogprob]) -> list[Event]:
        """Book the computed rows and sampled tokens (i32 [n_steps, n_samples])."""
        now = time.perf_counter()
        sampled = [c.seq for c in chunks if c.sampled]
        for c in chunks:
            c.seq.computed += c.rows
        events: list[Event] = []
        for seq, column in zip(sampled, tokens.T.tolist(), strict=True):
            events += self._tokens(seq, column, now, logprobs.get(seq.id))
        return events

    def _tokens(self, seq: _Sequence, column: list[int], now: float, logprob: TokenLogprob | None) -> list[Event]:
        """Book what a call sampled for a sequence, up to its end. Key and value of the last token are not computed."""
        room = seq.max_tokens - seq.generated
        finish: Finish | None = "length" if len(column) >= room else None
        kept = column[:room]
        for i, token in enumerate(kept):
            if token in seq.request.stop_ids:
                kept, finish = kept[: i + 1], "stop"
                break
        seq.tokens += kept
        seq.computed += len(kept) - 1
        seq.timing.tokens += len(kept)
        seq.timing.last_token = now
        seq.timing.first_token = seq.timing.first_token or now
        self.metrics.generated_tokens += len(kept)
        events = [Event(seq.id, token, None, logprob) for token in kept]
        if finish:
            events[-1] = self._finish(seq, kept[-1], finish, logprob)
        return events

    def _drop(self, failed: list[_Sequence]) -> None:
        """After a failed run. When the backend cannot recover, nobody is served."""
        for seq in failed:
            self._finish(seq, None, "abort")
        try:
            kept = self.backend.recover()
        except PlowError:
            self.abort_all()
            raise
        for seq in self._running if not kept else []:
            seq.computed = 0

    def _finish(self, seq: _Sequence, token: int | None, reason: Finish, logprob: TokenLogprob | None = None) -> Event:
        if seq.slot >= 0:
            self.blocks.free(seq.slot)
            seq.slot = -1
            self._running.remove(seq)
        else:
            self._waiting.remove(seq)
        self.metrics.record(seq.timing, reason)
        return Event(seq.id, token, reason, logprob, seq.timing)

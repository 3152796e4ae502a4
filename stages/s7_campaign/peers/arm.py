"""What every arm is, how a step becomes one CUDA graph, and the clock."""

from __future__ import annotations

import statistics
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Callable

import torch

from plow.errors import PlowError

from .weights import Weights

WARM_STEPS = 5
"""Untimed steps in front of a measurement, as CudaBackend.time_steps has them."""
FAILURES: tuple[type[Exception], ...] = (
    RuntimeError, TypeError, ValueError, AttributeError, LookupError, ImportError, AssertionError, ArithmeticError,
    OSError, SyntaxError, StopIteration, subprocess.SubprocessError, PlowError,
)  # fmt: skip
"""What makes one arm invalid and lets the others go on: compilers raise nearly anything."""
try:
    from triton.errors import TritonError

    FAILURES = (*FAILURES, TritonError)
except ImportError:  # no Triton, or one whose errors are among the above
    pass


def brief(error: Exception) -> str:
    """Kind and first line of an error, for a reason or a note."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:300] if lines else ''}"


class Arm(ABC):
    """A greedy decoder of `batch` sequences that stand at one position.

    token: i64 [batch], position: i64 [1], both on the device, what the next step reads; logits: [batch, vocab] of the
    last step. `step` is one step on the current stream without a word from the host; `advance` the same as it is timed.
    """

    def __init__(self, weights: Weights, batch: int, max_ctx: int) -> None:
        self.weights, self.shape, self.batch, self.max_ctx = weights, weights.shape, batch, max_ctx
        self.token = torch.zeros(batch, dtype=torch.int64, device=weights.device)
        self.position = torch.zeros(1, dtype=torch.int64, device=weights.device)
        self.logits = torch.zeros(0, device=weights.device)
        self.graph: torch.cuda.CUDAGraph | None = None
        self.note = ""

    def prepare(self, start: int) -> None:  # noqa: B027  # an arm may have nothing to prepare
        """Compile, tune and capture, at positions from `start` on; `fill` was called before."""

    def weaken(self, start: int) -> bool:
        """After a failed check: prepare again without what is most likely wrong. False: nothing can be left out."""
        return False

    @abstractmethod
    def fill(self, kv: torch.Tensor) -> None:
        """Keys and values of the first positions. kv: bf16 [layers, 2, batch, kv_heads, positions, head_dim]."""

    @abstractmethod
    def step(self) -> None: ...

    def seek(self, token: torch.Tensor, position: int) -> None:
        """The next step reads these tokens, i64 [batch], at this position."""
        self.token.copy_(token)
        self.position.fill_(position)

    def advance(self) -> None:
        if self.graph is None:
            self.step()
        else:
            self.graph.replay()


def capture(step: Callable[[], object], warm: int = 2) -> torch.cuda.CUDAGraph:
    """`step` as a CUDA graph; it runs `warm` times before, which compiles what it calls."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(warm):
            step()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph


def replay_ms(graph: torch.cuda.CUDAGraph, replays: int = 6, tries: int = 3) -> float:
    """Milliseconds of a replay, median of `tries`; for choices among variants, not for results."""
    graph.replay()
    found = []
    for _ in range(tries):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(replays):
            graph.replay()
        end.record()
        end.synchronize()
        found.append(start.elapsed_time(end) / replays)
    return statistics.median(found)


REPLAYS_OF_A_TRY = 2 + 1 + 6 * 3
"""Steps that `capture` and `replay_ms` take together: so far positions run ahead."""


@torch.no_grad()
def teacher_forced(arm: Arm, tokens: torch.Tensor, start: int) -> torch.Tensor:
    """f32 [steps, batch, vocab]: logits after each of tokens i64 [batch, steps], the first at position `start`."""
    found = []
    for i in range(tokens.shape[1]):
        arm.seek(tokens[:, i], start + i)
        arm.advance()
        found.append(arm.logits.float().clone())
    return torch.stack(found)


@torch.no_grad()
def time_steps(arm: Arm, token: torch.Tensor, start: int, steps: int) -> tuple[float, list[int]]:
    """(milliseconds a step, last tokens): CUDA events around `steps` greedy steps from `start` on.

    Raises PlowError when the arm's position says that it took another number of steps."""
    arm.seek(token, start)
    for _ in range(min(WARM_STEPS, steps)):
        arm.advance()
    arm.seek(token, start)
    torch.cuda.synchronize()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(steps):
        arm.advance()
    end.record()
    end.synchronize()
    stands = int(arm.position)
    if stands != start + steps:
        raise PlowError(f"the arm stands at {stands}, not at {start + steps}", type(arm).__name__, "report this")
    return begin.elapsed_time(end) / steps, arm.token.tolist()

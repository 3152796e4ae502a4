"""The gate of stage 5: a block gives what it should at every edge, the same bits however it is batched, in its time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from functools import cached_property

import numpy as np

from plow.checkpoint import Checkpoint
from plow.oracle.client import HFOracle
from plow.runtime.cpu import CpuBackend
from plow.runtime.numpy_vm import NumpyBackend
from stages.base import Check, GateReport, StageContext
from stages.s1_ir.subject import Oracle
from stages.s5_block import compare, timing
from stages.s5_block.compare import Found
from stages.s5_block.probes import with_prefixes
from stages.s5_block.reference import Exact, captured
from stages.s5_block.reference import Rows as Values
from stages.s5_block.rig import Rig
from stages.s5_block.subject import MAX_BATCH, Subject
from stages.s5_block.timing import Timings


class Judge:
    """The measurements, each made when a part first asks for it."""

    def __init__(self, s: Subject, start_oracle: Callable[[], Oracle], measure: Callable[[], Timings]) -> None:
        self.s, self.start_oracle, self.measure = s, start_oracle, measure
        self.bundle, self.prefixes = with_prefixes(s.bundle)
        self.tokens = s.tokens()
        first, count = compare.CHUNK
        self.rows = sorted({c - 1 for c in s.contexts} | set(range(first, first + count)))

    @cached_property
    def want(self) -> list[Values]:
        exact = Exact(self.s.graph, Checkpoint.open(self.s.path))
        return [exact.values(self.tokens[slot], self.rows) for slot in range(MAX_BATCH)]

    @cached_property
    def cpu(self) -> tuple[Found, list[str], int]:
        """(grid and prompt step, arrays that depend on the chunking, arrays compared) of the C interpreter."""
        backend = CpuBackend(self.bundle)
        try:
            rig = Rig(self.s, backend, self.prefixes, self.tokens.copy())
            found = compare.grid(rig, self.s.contexts, self.want, self.rows)
            compare.chunk(rig, self.want[0], self.rows, found)
            return found, *compare.chunks_unequal(rig, max(self.s.contexts))
        finally:
            backend.close()

    @cached_property
    def numpy(self) -> Found:
        backend = NumpyBackend(self.bundle, order=f"random:{self.s.seed}")
        rig = Rig(self.s, backend, self.prefixes, self.tokens.copy())
        found = compare.grid(rig, self.s.contexts, self.want, self.rows)
        compare.chunk(rig, self.want[0], self.rows, found)
        return found

    @cached_property
    def oracle(self) -> Found:
        """The C interpreter's values of slot 0 against transformers' modules."""
        captures = self.start_oracle().capture(self.tokens[0].tolist())
        return compare.against(self.cpu[0], captured(self.s.graph, captures, self.rows), self.rows)

    @cached_property
    def timings(self) -> Timings:
        return self.measure()


def interpreters(j: Judge) -> list[Check]:
    lost = sorted(j.cpu[0].not_compared | j.numpy.not_compared | _unseen(j))
    return [
        _error(j, "operator_error_cpu", j.cpu[0]),
        _error(j, "operator_error_numpy", j.numpy),
        j.s.check("operators_not_compared", len(lost), ", ".join(lost[:3]) or f"{len(j.cpu[0].errors)} values"),
        j.s.check("grid_points", j.cpu[0].points, f"contexts {j.s.contexts}, layers {j.s.layers} of the model"),
    ]


def _error(j: Judge, name: str, found: Found) -> Check:
    error, where = found.worst()
    order = [v for n in j.s.fused.nodes for v in (f"{n.attrs.get('cache')}.k", f"{n.attrs.get('cache')}.v", *n.outputs)]
    first = found.first_above(order, j.s.limit(name))
    return j.s.check(name, error, f"first operator that departs: {first}" if first else f"largest: {where}")


def _unseen(j: Judge) -> set[str]:
    """Results of the compiled graph that no program was stopped at."""
    return {n.outputs[0] for n in j.s.fused.nodes} - set(j.cpu[0].errors) - j.cpu[0].not_compared


def modules(j: Judge) -> list[Check]:
    layers = Counter(v.rpartition(".")[0] for v in j.oracle.errors if v.startswith("layer."))
    fewest = min((layers.get(f"layer.{i}", 0) for i in range(j.s.graph.meta["num_layers"])), default=0)
    return [
        _error(j, "operator_error_oracle", j.oracle),
        j.s.check("oracle_values_per_layer", fewest, f"{len(j.oracle.errors)} values beside transformers' modules"),
    ]


def bits(j: Judge) -> list[Check]:
    found, unequal, arrays = j.cpu
    return [
        j.s.check("rows_not_bit_equal", len(found.rows_unequal), "; ".join(found.rows_unequal[:3])),
        j.s.check("rows_compared", found.rows_compared, "logits, keys and values of a row in a batch and alone"),
        j.s.check(
            "chunks_not_bit_equal",
            len(unequal),
            ", ".join(unequal) or f"{arrays} arrays, {max(j.s.contexts)} positions",
        ),
    ]


def times(j: Judge) -> list[Check]:
    t = j.timings
    return [
        j.s.check("block_time_over_floor", t.over_floor, str(t)),
        j.s.check(
            "block_speed_over_ceiling", 1 / t.over_floor, "floor over time: more than the machine can is a broken timer"
        ),
        j.s.check("block_reconciliation", t.unreconciled, f"{t.layers} blocks and the rest against the whole step"),
    ]


PARTS: dict[Callable[[Judge], list[Check]], tuple[str, ...]] = {
    interpreters: ("operator_error_cpu", "operator_error_numpy", "operators_not_compared", "grid_points"),
    bits: ("rows_not_bit_equal", "rows_compared", "chunks_not_bit_equal"),
    modules: ("operator_error_oracle", "oracle_values_per_layer"),
    times: ("block_time_over_floor", "block_speed_over_ceiling", "block_reconciliation"),
}
CHECKS = tuple(name for names in PARTS.values() for name in names)


def gate(ctx: StageContext) -> GateReport:
    """Needs the oracle extra: raises ToolMissing (no verdict) without it."""
    with ExitStack() as stack:
        s = Subject.open(ctx)
        return judge(Judge(s, lambda: stack.enter_context(HFOracle(s.path)), lambda: timing.measure(ctx)))


def judge(j: Judge) -> GateReport:
    """Timing comes last, when no oracle process computes beside it."""
    only = j.s.ctx.params.get("only")
    with np.errstate(invalid="ignore"):  # poison is NaN on purpose
        return GateReport(5, [c for part, names in PARTS.items() if only in (None, *names) for c in part(j)])

"""The compile driver: checkpoint directory in, bundle directory out, through the one path of rooms."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from plow import __version__, hw
from plow.checkpoint import Checkpoint
from plow.errors import BundleError, ConfigError
from plow.graph import Graph, verify
from plow.hw.machine import Machine
from plow.models import build, check_weights
from plow.packet import container
from plow.packet.abi import ABI_VERSION, KV_BLOCK, UNIT_ROWS
from plow.rewrite import Rewritten, rewrite
from plow.runtime.build_cpu import build as build_interpreter
from plow.schedule.arena import KvSegment, WeightSegment, align, place_activations
from plow.schedule.program import Layout, build_program
from plow.schedule.weights import write_image
from plow.tiles.forms import Form, Lowering, sample_form

TARGETS = ("cpu",)
ROW_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
MAX_DEFAULT_WORKERS = 16
PROMPT_ROWS = 16
"""Programs with at least this many rows may use bf16 dot products (prompt_math "bf16")."""
Progress = Callable[[str], None]


@dataclass
class Options:
    """What a user chooses. max_ctx: positions a sequence; max_batch: sequences; workers: 0 = this process's cores."""

    target: str = "cpu"
    max_ctx: int = 2048
    max_batch: int = 8
    rows: tuple[int, ...] = ROW_BUCKETS
    workers: int = 0
    machine: str = "cpu"
    prompt_math: str = "fp32"
    disabled_rules: tuple[str, ...] = ()
    round_weights: bool = False
    interpreter: dict[str, Any] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    """Where a tuned choice comes from: option name -> "default", "command line" or a tune record's digest."""


@dataclass
class Compiled:
    """What the compiler knows before bytes are written."""

    graph: Graph
    rewritten: Rewritten
    machine: Machine
    packets: container.PacketFile
    weights: WeightSegment
    forms: list[Form]


def lower(graph: Graph, options: Options, valid_vocab: int) -> Compiled:
    """Graph -> programs. Raises LoweringError, GraphError or ConfigError."""
    _check(options, graph)
    machine = hw.load(options.machine)
    workers = options.workers or local_workers()
    disabled = frozenset(options.disabled_rules) | _unavailable(graph)
    rewritten = rewrite(graph, machine, {"T": 1, "S": 1, "C": min(512, options.max_ctx)}, disabled=disabled)
    fused = verify(rewritten.graph)
    blocks_per_seq = -(-options.max_ctx // KV_BLOCK)
    layout = Layout(WeightSegment(), 0, KvSegment(), 0, options.max_batch * blocks_per_seq)
    plans = {rows: _forms(fused, valid_vocab, options, rows) for rows in options.rows}
    for forms in plans.values():
        layout.weights.place(fused, forms, options.max_ctx)
    layout.activations_start = align(layout.weights.bytes)
    samples = {rows: min(rows, options.max_batch) for rows in options.rows}
    placements = {rows: place_activations(fused, forms, rows, samples[rows]) for rows, forms in plans.items()}
    layout.kv_start = align(layout.activations_start + max(p.bytes for p in placements.values()))
    layout.kv.place(graph.meta["caches"], layout.num_kv_blocks)
    programs = [
        build_program(fused, forms, placements[rows], layout, rows, samples[rows], workers)
        for rows, forms in plans.items()
    ]
    header = _header(options, graph, layout, workers, next(iter(plans.values())), valid_vocab, blocks_per_seq)
    return Compiled(
        fused, rewritten, machine, container.PacketFile(header, programs), layout.weights, next(iter(plans.values()))
    )


def local_workers() -> int:
    """Workers without a choice or a tune record: the cores that this process may use, at most MAX_DEFAULT_WORKERS."""
    return min(len(os.sched_getaffinity(0)), MAX_DEFAULT_WORKERS)


def _check(options: Options, graph: Graph) -> None:
    if options.target not in TARGETS:
        raise ConfigError(f"unknown target {options.target!r}", "--gpu", f"known: {', '.join(TARGETS)}")
    longest = graph.meta["max_position_embeddings"]
    if not 1 <= options.max_ctx <= longest:
        raise ConfigError(
            f"--max-ctx {options.max_ctx} is outside 1..{longest}",
            "max_position_embeddings",
            "choose a length the model was trained for",
        )
    if options.prompt_math not in ("fp32", "bf16"):
        raise ConfigError(f"prompt math {options.prompt_math!r} is unknown", "--prompt-math", "fp32 or bf16")


def _unavailable(graph: Graph) -> frozenset[str]:
    """Rules whose fused operator has no packet form for this model's dimensions."""
    from plow.rewrite import RULES

    if graph.meta["head_dim"] % UNIT_ROWS == 0:
        return frozenset()
    return frozenset(name for name in RULES if name.startswith("qkv"))


def _forms(graph: Graph, valid_vocab: int, options: Options, rows: int) -> list[Form]:
    lowering = Lowering(graph, bf16_dot=options.prompt_math == "bf16" and rows >= PROMPT_ROWS)
    return [*(lowering.form(n) for n in graph.nodes), sample_form(lowering, graph.outputs[0], valid_vocab)]


def _header(
    o: Options, graph: Graph, layout: Layout, workers: int, forms: list[Form], valid_vocab: int, blocks_per_seq: int
) -> dict[str, Any]:
    return {
        "target": o.target,
        "workers": workers,
        "nodes": [f.node.name for f in forms],
        "arena": {
            "bytes": layout.kv_start + layout.kv.bytes,
            "segments": {
                "weights": [0, layout.weights.bytes],
                "activations": [layout.activations_start, layout.kv_start - layout.activations_start],
                "kv": [layout.kv_start, layout.kv.bytes],
            },
        },
        "limits": {
            "max_ctx": o.max_ctx,
            "max_slots": o.max_batch,
            "max_rows": max(o.rows),
            "max_samples": min(max(o.rows), o.max_batch),
            "num_kv_blocks": layout.num_kv_blocks,
            "kv_block": KV_BLOCK,
            "blocks_per_seq": blocks_per_seq,
            "vocab_size": valid_vocab,
            "num_layers": graph.meta["num_layers"],
        },
    }


def compile_checkpoint(
    checkpoint: str | Path, out: str | Path, options: Options | None = None, progress: Progress = lambda line: None
) -> dict[str, Any]:
    """Build a bundle; returns its manifest. The directory appears whole or not at all.

    Raises CheckpointError, ConfigError, LoweringError or BundleError (out exists and is no bundle).
    """
    options = options or Options()
    start = time.perf_counter()
    ck = Checkpoint.open(checkpoint)
    graph = build(ck.config)
    check_weights(graph, ck, round_weights=options.round_weights)
    progress(f"graph: {len(graph.nodes)} operators, {len(graph.weights)} weights")
    compiled = lower(graph, options, valid_vocab=_valid_vocab(ck, graph))
    programs = compiled.packets.programs
    packets = sum(p.num_packets for p in programs)
    progress(f"rewrite: {len(compiled.graph.nodes)} operators; {packets} packets in {len(programs)} programs")
    out = Path(out)
    staging = _staging(out)
    manifest = _write_bundle(staging, ck, graph, compiled, options, progress)
    manifest["compile_seconds"] = round(time.perf_counter() - start, 2)
    (staging / "manifest.json").write_text(json.dumps(manifest, indent=1))
    if out.exists():
        shutil.rmtree(out)
    staging.rename(out)
    progress(f"bundle: {out} in {manifest['compile_seconds']} s")
    return manifest


def _staging(out: Path) -> Path:
    if out.exists() and not (out / "manifest.json").exists() and any(out.iterdir()):
        raise BundleError("output directory exists and is no bundle", str(out), "choose another --out")
    staging = out.with_name(out.name + ".partial")
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    return staging


def _valid_vocab(ck: Checkpoint, graph: Graph) -> int:
    """Ids that may be sampled: the vocabulary may be padded beyond the tokenizer."""
    return min(graph.meta["vocab_size"], ck.tokenizer_size or graph.meta["vocab_size"])


def _write_bundle(
    out: Path, ck: Checkpoint, graph: Graph, c: Compiled, o: Options, progress: Progress
) -> dict[str, Any]:
    digest = container.save(c.packets, out / "model.pkt")
    write_image(out / "weights.bin", c.weights, ck.tensor, o.max_ctx)
    progress(f"weights: {c.weights.bytes / 1e6:.0f} MB packed")
    interpreter = build_interpreter(out, **o.interpreter)
    for f in [*ck.tokenizer_files, ck.path / "config.json"]:
        shutil.copy(f, out / f.name)
    (out / "certificates").mkdir()
    return {
        "schema": "plow.bundle/1",
        "plow_version": __version__,
        "target": o.target,
        "abi_version": ABI_VERSION,
        "model": {k: v for k, v in graph.meta.items() if isinstance(v, str | int | float | bool)},
        "checkpoint": {"name": ck.path.name, "digest": ck.digest()},
        "packets": {"file": "model.pkt", "sha256": digest},
        "weights": {"file": "weights.bin", "sha256": file_sha256(out / "weights.bin"), "bytes": c.weights.bytes},
        "interpreter": interpreter,
        "files": {f.name: file_sha256(out / f.name) for f in sorted(out.iterdir()) if f.suffix == ".json"},
        "eos_token_ids": list(ck.generation.eos_token_ids),
        "options": {k: v for k, v in asdict(o).items() if k != "sources"},
        "choices": choices(o, c),
        "machine": asdict(c.machine),
        "rewrites": {
            "fired": c.rewritten.fired,
            "chosen": c.rewritten.chosen,
            "predicted_seconds": [c.rewritten.seconds_before, c.rewritten.seconds_after],
        },
    }


def choices(o: Options, c: Compiled) -> dict[str, dict[str, Any]]:
    """Every tuned choice with its value and where it comes from."""
    values = {"workers": c.packets.header["workers"], "prompt_math": o.prompt_math, **o.interpreter}
    return {k: {"value": v, "source": o.sources.get(k, "default")} for k, v in values.items()}


def file_sha256(path: Path) -> str:
    with path.open("rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def rows_argument(text: str) -> tuple[int, ...]:
    """ "1,8,512" -> (1, 8, 512); raises ConfigError."""
    try:
        rows: Iterable[int] = sorted({int(x) for x in text.split(",")})
    except ValueError:
        raise ConfigError(f"rows {text!r} is no list of numbers", "--rows", "for example 1,2,4,8") from None
    if min(rows) < 1:
        raise ConfigError("rows must be positive", "--rows", "for example 1,2,4,8")
    return tuple(rows)

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
from plow.checkpoint.jsonfile import read_json
from plow.errors import BundleError, ConfigError
from plow.graph import Graph, verify
from plow.hw.machine import Machine
from plow.models import build, check_weights
from plow.packet import container
from plow.packet.abi import ABI_VERSION, KV_BLOCK, UNIT_ROWS
from plow.packet.container import ProgramRecord
from plow.rewrite import Rewritten, rewrite
from plow.runtime import build_cpu, build_cuda
from plow.runtime.cuda_entries import entry_defines
from plow.schedule.arena import WeightSegment
from plow.schedule.laid import Laid
from plow.schedule.program import lay_units
from plow.schedule.stream import lay_stream
from plow.schedule.weights import regions, write_image

ROW_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
MAX_DEFAULT_WORKERS = 16
Progress = Callable[[str], None]


@dataclass
class Options:
    """What a user chooses. max_ctx: positions a sequence; max_batch: sequences; rows, workers, machine: empty = the
    target's."""

    target: str = "cpu"
    max_ctx: int = 2048
    max_batch: int = 8
    rows: tuple[int, ...] = ()
    workers: int = 0
    machine: str = ""
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


def lower(graph: Graph, options: Options, valid_vocab: int) -> Compiled:
    """Graph -> programs. Raises LoweringError, GraphError or ConfigError."""
    target = _target(options)
    _check(options, graph)
    machine = hw.load(options.machine or target.machine)
    rows = options.rows or target.rows
    workers = options.workers or target.workers(machine)
    disabled = frozenset(options.disabled_rules) | target.unavailable(graph)
    rewritten = rewrite(graph, machine, {"T": 1, "S": 1, "C": min(512, options.max_ctx)}, disabled=disabled)
    fused = verify(rewritten.graph)
    blocks_per_seq = -(-options.max_ctx // KV_BLOCK)
    blocks = options.max_batch * blocks_per_seq
    laid = target.lay(fused, options, rows, workers, blocks, valid_vocab)
    header = {
        "target": options.target,
        "workers": workers,
        "nodes": laid.nodes,
        "arena": {"bytes": laid.bytes, "segments": {k: list(v) for k, v in laid.segments.items()}},
        "limits": {
            "max_ctx": options.max_ctx,
            "max_slots": options.max_batch,
            "max_rows": max(rows),
            "max_samples": min(max(rows), options.max_batch),
            "num_kv_blocks": blocks,
            "kv_block": KV_BLOCK,
            "blocks_per_seq": blocks_per_seq,
            "vocab_size": valid_vocab,
            "num_layers": graph.meta["num_layers"],
        },
        **laid.header,
    }
    return Compiled(fused, rewritten, machine, container.PacketFile(header, laid.programs), laid.weights)


def local_workers() -> int:
    """Workers without a choice or a tune record: the cores that this process may use, at most MAX_DEFAULT_WORKERS."""
    return min(len(os.sched_getaffinity(0)), MAX_DEFAULT_WORKERS)


@dataclass(frozen=True)
class Target:
    """What a target decides. machine: name of its hardware spec; rows: default row buckets; workers: of a machine;
    unavailable: rules whose fused operator has no packet form for a graph's dimensions; lay: the scheduler;
    interpreter: builds what runs the programs into a bundle and returns its manifest entry."""

    machine: str
    rows: tuple[int, ...]
    workers: Callable[[Machine], int]
    unavailable: Callable[[Graph], frozenset[str]]
    lay: Callable[[Graph, Options, tuple[int, ...], int, int, int], Laid]
    interpreter: Callable[..., dict[str, Any]]


def _target(options: Options) -> Target:
    if options.target not in TARGETS:
        raise ConfigError(f"unknown target {options.target!r}", "--gpu", f"known: {', '.join(TARGETS)}")
    return TARGETS[options.target]


def _check(options: Options, graph: Graph) -> None:
    longest = graph.meta["max_position_embeddings"]
    if not 1 <= options.max_ctx <= longest:
        raise ConfigError(
            f"--max-ctx {options.max_ctx} is outside 1..{longest}",
            "max_position_embeddings",
            "choose a length the model was trained for",
        )
    if options.prompt_math not in ("fp32", "bf16"):
        raise ConfigError(f"prompt math {options.prompt_math!r} is unknown", "--prompt-math", "fp32 or bf16")


def _unavailable_units(graph: Graph) -> frozenset[str]:
    """qkv packets need heads of whole weight units."""
    from plow.rewrite import RULES

    if graph.meta["head_dim"] % UNIT_ROWS == 0:
        return frozenset()
    return frozenset(name for name in RULES if name.startswith("qkv"))


def _lay_units(graph: Graph, o: Options, rows: tuple[int, ...], workers: int, blocks: int, valid_vocab: int) -> Laid:
    return lay_units(graph, rows, workers, o.max_ctx, o.max_batch, blocks, valid_vocab, o.prompt_math == "bf16")


def _lay_stream(graph: Graph, o: Options, rows: tuple[int, ...], workers: int, blocks: int, valid_vocab: int) -> Laid:
    return lay_stream(graph, rows, workers, o.max_ctx, o.max_batch, blocks, valid_vocab)


def _cpu(out: Path, programs: list[ProgramRecord], **options: Any) -> dict[str, Any]:
    return build_cpu.build(out, **options)


def _cuda(out: Path, programs: list[ProgramRecord], **options: Any) -> dict[str, Any]:
    return build_cuda.build(out, **{**options, "defines": (*entry_defines(programs), *options.get("defines", ()))})


TARGETS = {
    "cpu": Target("cpu", ROW_BUCKETS, lambda machine: local_workers(), _unavailable_units, _lay_units, _cpu),
    "h200": Target(
        "h200", (1, 2, 4, 8), lambda machine: machine.workers, lambda graph: frozenset(), _lay_stream, _cuda
    ),
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
    compiled = _lower(graph, options, _valid_vocab(ck, graph), progress)

    def fill(staging: Path) -> dict[str, Any]:
        write_image(staging / "weights.bin", compiled.weights, ck.tensor, options.max_ctx)
        progress(f"weights: {compiled.weights.bytes / 1e6:.0f} MB packed")
        for f in [*ck.tokenizer_files, ck.path / "config.json"]:
            shutil.copy(f, staging / f.name)
        image = {"file": "weights.bin", "sha256": file_sha256(staging / "weights.bin"), "bytes": compiled.weights.bytes}
        return {
            "checkpoint": {"name": ck.path.name, "digest": ck.digest()},
            "weights": image | {"regions": regions(compiled.graph, compiled.weights, options.max_ctx)},
            "eos_token_ids": list(ck.generation.eos_token_ids),
        }

    return _write(Path(out), graph, compiled, options, fill, start, progress)


SYNTHETIC_SCALE = 0.02
"""Standard deviation of drawn weights: never zeros, which some machines multiply faster."""


def compile_config(
    config: str | Path, out: str | Path, options: Options, seed: int, progress: Progress = lambda line: None
) -> dict[str, Any]:
    """A *shape bundle* from a config.json alone, for benchmarks: its weights are drawn on the device when it is loaded,
    so it has no text to serve. Returns the manifest; raises as `compile_checkpoint`."""
    start = time.perf_counter()
    graph = build(read_json(Path(config)))
    compiled = _lower(graph, options, graph.meta["vocab_size"], progress)
    progress(f"SHAPE BUNDLE: weights are random (seed {seed}); for measurements only, it cannot serve text")

    def fill(staging: Path) -> dict[str, Any]:
        shutil.copy(config, staging / "config.json")
        drawn = {"synthetic": seed, "scale": SYNTHETIC_SCALE, "bytes": compiled.weights.bytes}
        return {
            "checkpoint": {"name": f"{Path(config).stem} (shape only)", "digest": ""},
            "weights": drawn | {"regions": regions(compiled.graph, compiled.weights, options.max_ctx)},
            "eos_token_ids": [],
        }

    return _write(Path(out), graph, compiled, options, fill, start, progress)


def _lower(graph: Graph, options: Options, valid_vocab: int, progress: Progress) -> Compiled:
    progress(f"graph: {len(graph.nodes)} operators, {len(graph.weights)} weights")
    compiled = lower(graph, options, valid_vocab)
    programs = compiled.packets.programs
    packets = sum(p.num_packets for p in programs)
    progress(f"rewrite: {len(compiled.graph.nodes)} operators; {packets} packets in {len(programs)} programs")
    return compiled


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


def _write(
    out: Path,
    graph: Graph,
    c: Compiled,
    o: Options,
    fill: Callable[[Path], dict[str, Any]],
    start: float,
    progress: Progress,
) -> dict[str, Any]:
    """Write the bundle beside `out` and move it there. fill: writes weights and text files, returns their entries."""
    staging = _staging(out)
    digest = container.save(c.packets, staging / "model.pkt")
    entries = fill(staging)
    interpreter = _target(o).interpreter(staging, c.packets.programs, **o.interpreter)
    (staging / "certificates").mkdir()
    manifest = {
        "schema": "plow.bundle/1",
        "plow_version": __version__,
        "target": o.target,
        "abi_version": ABI_VERSION,
        "model": {k: v for k, v in graph.meta.items() if isinstance(v, str | int | float | bool)},
        "packets": {"file": "model.pkt", "sha256": digest},
        **entries,
        "interpreter": interpreter,
        "files": {f.name: file_sha256(f) for f in sorted(staging.iterdir()) if f.suffix == ".json"},
        "options": {k: v for k, v in asdict(o).items() if k != "sources"},
        "choices": choices(o, c),
        "machine": asdict(c.machine),
        "rewrites": {
            "fired": c.rewritten.fired,
            "chosen": c.rewritten.chosen,
            "predicted_seconds": [c.rewritten.seconds_before, c.rewritten.seconds_after],
        },
        "compile_seconds": round(time.perf_counter() - start, 2),
    }
    (staging / "manifest.json").write_text(json.dumps(manifest, indent=1))
    if out.exists():
        shutil.rmtree(out)
    staging.rename(out)
    progress(f"bundle: {out} in {manifest['compile_seconds']} s")
    return manifest


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

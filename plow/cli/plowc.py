"""`plowc`: build a bundle, look into it, predict its speed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from plow import hw
from plow.checkpoint import Checkpoint, resolve
from plow.cli.common import DebugOption, JsonOption, console, emit, new_app, reporting
from plow.cli.picture import render
from plow.compile import Options, compile_checkpoint, compile_config, lower, rows_argument
from plow.errors import BundleError, ConfigError
from plow.models import build
from plow.packet import container
from plow.packet.disasm import disassemble
from plow.rewrite import report
from plow.runtime import bundle as bundles
from plow.schedule.simulate import simulate
from plow.tune.choices import apply_tuned
from plow.verify import sass

app = new_app("Build a bundle, look into it, predict its speed.")
CERTIFIED_TARGETS = ("cpu",)
"""Targets whose programs Lean can certify."""
AssetsOption = Annotated[Path, typer.Option("--assets", help="bundle directory")]
MachineOption = Annotated[str, typer.Option("--machine", help="hardware spec: name or JSON file")]
DisableOption = Annotated[list[str] | None, typer.Option("--disable-rule", help="rewrite rule to leave out")]


@app.callback(invoke_without_command=True)
def compile_command(
    ctx: typer.Context,
    hf_dir: Annotated[str, typer.Option("--hf-dir", help="checkpoint directory, or org/name on the hub")] = "",
    gpu: Annotated[str, typer.Option("--gpu", help="target: cpu or h200")] = "cpu",
    max_ctx: Annotated[int, typer.Option("--max-ctx", help="positions of a sequence")] = 2048,
    out: Annotated[Path | None, typer.Option("--out", help="bundle directory to write")] = None,
    max_batch: Annotated[int, typer.Option("--max-batch", help="sequences at a time")] = 8,
    rows: Annotated[str, typer.Option("--rows", help="row buckets, e.g. 1,2,4,8; default: the target's")] = "",
    workers: Annotated[int, typer.Option("--workers", help="0 = tuned, else the cores of this machine")] = 0,
    machine: Annotated[str, typer.Option("--machine", help="cost model: a spec or a file; default: the target's")] = "",
    prompt_math: Annotated[str, typer.Option("--prompt-math", help="fp32, or bf16 dot products for prompts")] = "fp32",
    disable: DisableOption = None,
    round_weights: Annotated[bool, typer.Option("--round-weights", help="round fp32/fp16 weights to bf16")] = False,
    tune_db: Annotated[Path | None, typer.Option("--tune-db", help="tune database whose winners are used")] = None,
    isa: Annotated[str, typer.Option("--isa", help="instruction set of a GPU target; default: the target's")] = "",
    verify: Annotated[
        str, typer.Option("--verify", help="on: certify with Lean; off: leave uncertified; auto: on where it can be")
    ] = "auto",
    config: Annotated[Path | None, typer.Option("--config", help="config.json of a shape bundle")] = None,
    synthetic: Annotated[int | None, typer.Option("--synthetic", help="seed of a shape bundle's weights")] = None,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Compile a checkpoint: plowc --hf-dir DIR --gpu cpu --max-ctx N --out BUNDLE."""
    if ctx.invoked_subcommand:
        return
    with reporting(as_json, debug):
        shape = config is not None or synthetic is not None
        if out is None or bool(hf_dir) == shape or (config is None) != (synthetic is None):
            raise ConfigError("a build needs --out and --hf-dir, or --config with --synthetic", "plowc", "plowc --help")
        certify = _certifies(verify, gpu)
        options = Options(
            gpu,
            max_ctx,
            max_batch,
            rows_argument(rows) if rows else (),
            workers,
            machine,
            prompt_math,
            tuple(disable or ()),
            round_weights,
            _interpreter(gpu, isa),
        )
        if tune_db is not None:
            apply_tuned(options, tune_db)
        if config is not None and synthetic is not None:
            manifest = compile_config(config, out, options, synthetic, progress=_say)
        else:
            manifest = compile_checkpoint(resolve(hf_dir), out, options, progress=_say)
        certificates = _certify(out) if certify else []
        if as_json:
            emit({**manifest, "schema": "plowc.build/1", "out": str(out), "certificates": certificates})


def _interpreter(target: str, isa: str) -> dict[str, str]:
    """Arguments of the target's interpreter build. Raises ConfigError."""
    if isa and target == "cpu":
        raise ConfigError("--isa is of GPU targets", "--isa", "leave it out, or choose --gpu h200")
    return {"isa": isa} if isa else {}


def _certifies(verify: str, target: str) -> bool:
    """Whether the build ends with Lean. Published values have no certificate yet. Raises ConfigError."""
    if verify not in ("auto", "on", "off"):
        raise ConfigError(f"--verify {verify!r} is unknown", "plowc", "auto, on or off")
    if target in CERTIFIED_TARGETS:
        return verify != "off"
    if verify == "on":
        raise ConfigError(f"programs for {target} cannot be certified yet", "--verify", "build with --verify off")
    if verify == "auto":
        _warn(f"UNCERTIFIED: programs for {target} have no certificate yet; plowrt needs --allow-uncertified")
    return False


def _say(line: str) -> None:
    if line.startswith("SHAPE BUNDLE"):
        _warn(line)
    else:
        console.print(line, markup=False)


def _warn(line: str) -> None:
    console.print(line, style="bold yellow", markup=False)


def _certify(out: Path) -> list[str]:
    from plow.verify import certify

    with console.status("Lean: certifying every program"):
        certificates = certify(out / "model.pkt", out / "certificates")
    for c in certificates:
        _say(f"certificate {c.checkpoint}: {c.verdict} in {c.seconds:.1f} s")
    return [c.checkpoint for c in certificates]


@app.command("disasm")
def disasm_command(
    assets: AssetsOption,
    rows: Annotated[int | None, typer.Option("--rows", help="only the program of T rows")] = None,
    debug: DebugOption = False,
) -> None:
    """Print every packet by name."""
    with reporting(debug=debug):
        for line in disassemble(_packets(assets), rows):
            print(line)


@app.command("sim")
def sim_command(
    assets: AssetsOption,
    machine: MachineOption = "cpu",
    context: Annotated[int, typer.Option("--ctx", help="cached positions")] = 512,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Predict the step time of every program on a machine."""
    with reporting(as_json, debug):
        spec = hw.load(machine)
        rows = [_predict(p, spec, context) for p in _packets(assets).programs]
        if as_json:
            emit(
                {"schema": "plowc.sim/1", "machine": spec.name, "note": spec.note, "context": context, "programs": rows}
            )
            return
        table = Table("T", "packets", "step ms", "roofline ms", "tok/s", title=f"{spec.name}, context {context}")
        for r in rows:
            table.add_row(
                str(r["rows"]), str(r["packets"]), f"{r['step_ms']:.3f}", f"{r['bound_ms']:.3f}", f"{r['tok_s']:.0f}"
            )
        Console().print(table)


def _predict(program: container.ProgramRecord, machine: hw.Machine, context: int) -> dict[str, float]:
    s = simulate(program, machine, context)
    return {
        "rows": program.rows,
        "packets": program.num_packets,
        "step_ms": s.step_s * 1e3,
        "bound_ms": s.bound_s * 1e3,
        "bytes": s.bytes,
        "flops": s.flops,
        "tok_s": program.rows / s.step_s,
    }


@app.command("explain")
def explain_command(
    hf_dir: Annotated[str, typer.Option("--hf-dir", help="checkpoint directory")],
    disable: DisableOption = None,
    machine: MachineOption = "cpu",
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Which rewrites fired, which were chosen, and the price before and after."""
    with reporting(as_json, debug):
        graph = build(Checkpoint.open(resolve(hf_dir)).config)
        longest = min(2048, graph.meta["max_position_embeddings"])
        options = Options(rows=(1,), machine=machine, disabled_rules=tuple(disable or ()), max_ctx=longest)
        rewritten = lower(graph, options, graph.meta["vocab_size"]).rewritten
        if as_json:
            emit({"schema": "plowc.explain/1", **report.as_dict(rewritten)})
        else:
            print(report.render(rewritten))


@app.command("graph")
def graph_command(
    assets: AssetsOption,
    out: Annotated[Path, typer.Option("--out", help="HTML file to write")] = Path("graph.html"),
    rows: Annotated[int, typer.Option("--rows", help="program to draw")] = 1,
    machine: MachineOption = "cpu",
    debug: DebugOption = False,
) -> None:
    """A single-file picture of graph, fusions, tiles and schedule."""
    with reporting(debug=debug):
        packets = _packets(assets)
        program = next((p for p in packets.programs if p.rows == rows), None)
        if program is None:
            known = ", ".join(str(p.rows) for p in packets.programs)
            raise ConfigError(f"no program with {rows} rows", str(assets), f"known: {known}")
        config = json.loads((assets / "config.json").read_text())
        out.write_text(render(build(config), packets, program, hw.load(machine)))
        _say(f"wrote {out}")


@app.command("sass")
def sass_command(
    assets: AssetsOption,
    nvdisasm: Annotated[str, typer.Option("--nvdisasm", help="default: PLOW_NVDISASM, PATH, or the wheel's")] = "",
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Check the GPU interpreter's machine code: no shared memory is given back under loads in flight."""
    with reporting(as_json, debug):
        cubin = _cubin(assets)
        entries = sass.check(cubin, nvdisasm)
        errors = [v.error(f"{cubin}, {e.name}") for e in entries for v in e.violations]
        if as_json:
            rows = [{**vars(e), "violations": len(e.violations)} for e in entries]
            violations = [e.as_dict() for e in errors]
            emit({"schema": "plowc.sass/1", "cubin": str(cubin), "entries": rows, "violations": violations})
        else:
            table = Table("entry", "instructions", "loads", "arrives", "with loads in flight", title=str(cubin))
            for e in entries:
                table.add_row(e.name, *map(str, (e.instructions, e.loads, e.arrives, len(e.violations))))
            Console().print(table)
            for error in errors:
                console.print(f"error: {error.line()}", style="bold red", markup=False, soft_wrap=True)
        if errors:
            raise typer.Exit(errors[0].exit_code)


def _cubin(assets: Path) -> Path:
    """The bundle's GPU interpreter, whose digest is right. Raises BundleError, ConfigError for a CPU bundle."""
    bundle = bundles.load(assets, allow_uncertified=True)
    if bundle.file("interpreter").suffix != ".cubin":
        raise ConfigError(f"a bundle for {bundle.target} has no cubin", str(assets), "pass one built with --gpu h200")
    return bundle.file("interpreter")


def _packets(assets: Path) -> container.PacketFile:
    if not (assets / "model.pkt").exists():
        raise BundleError("no model.pkt", str(assets), "pass a bundle directory made by plowc")
    return container.load(assets / "model.pkt")


def main() -> None:
    """Entry point of the console script."""
    app()


if __name__ == "__main__":
    main()

"""`plowrt trace`: arguments and output of plow/runtime/trace.py."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from plow.cli.common import DebugOption, JsonOption, console, emit, reporting


def trace(
    assets: Annotated[Path, typer.Option("--assets", help="bundle directory")],
    batch: Annotated[int, typer.Option(help="sequences", min=1)] = 1,
    context: Annotated[int, typer.Option(help="positions before the traced step's", min=1)] = 512,
    steps: Annotated[int, typer.Option(help="steps of the launch, whose last one is traced", min=2)] = 5,
    out: Annotated[Path, typer.Option(help="file for Perfetto, or chrome://tracing")] = Path("trace.json"),
    svg: Annotated[Path | None, typer.Option(help="file for a picture of one layer")] = None,
    ceiling_gbs: Annotated[
        float, typer.Option(help="GB/s of the floor; default: of the machine that the bundle was built for", min=0)
    ] = 0.0,
    no_waits: Annotated[bool, typer.Option("--no-waits", help="diagnosis: wait for no input")] = False,
    no_math: Annotated[bool, typer.Option("--no-math", help="diagnosis: multiply no weights")] = False,
    no_loads: Annotated[bool, typer.Option("--no-loads", help="diagnosis: stream no weights and pages")] = False,
    no_attention: Annotated[bool, typer.Option("--no-attention", help="diagnosis: leave pages out")] = False,
    allow_uncertified: Annotated[bool, typer.Option("--allow-uncertified", help="run without a certificate")] = False,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Where a step on the GPU goes: every packet of one step, as a table and as a file for Perfetto.

    The switches of the diagnosis take a part of the work away; results are then wrong by design.
    """
    with reporting(as_json, debug):
        from plow.cli.plowrt import open_llm
        from plow.runtime.trace import Asked, run_trace

        switches = {"no_waits": no_waits, "no_math": no_math, "no_attention": no_attention, "no_loads": no_loads}
        asked = Asked(batch, context, steps, tuple(name for name, on in switches.items() if on), ceiling_gbs)
        llm = open_llm(assets, "", allow_uncertified)
        try:
            found = run_trace(llm, asked, out, svg)
        finally:
            llm.close()
        if found["note"]:
            console.print(found["note"], style="bold yellow", markup=False)
        if as_json:
            emit(found)
        else:
            show(found)
        for kind, path in found["files"].items():
            console.print(f"{kind}: {path}", style="dim", markup=False, soft_wrap=True)


def show(found: dict[str, Any]) -> None:
    """The table of a report, on stdout."""
    from plow.runtime.trace import HEAD, headline, table

    *rows, total = table(found)
    title = f"batch {found['batch']}, context {found['context']}: {headline(found)}"
    t = Table(title=title, caption=found["note"] or None, title_justify="left", show_footer=True)
    for i, (name, sum_) in enumerate(zip(HEAD, total, strict=True)):
        t.add_column(name, sum_, justify="right" if i else "left")
    for cells in rows:
        t.add_row(*cells)
    Console(highlight=False).print(t)

"""`plow-bringup`: start, follow, judge and explain a bring-up.

Every command takes --json (one object on stdout) and --debug (tracebacks); exit codes are in docs/harness.md.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from harness import ci as ci_module
from harness import ci_output, ledger, locate, registry, selftest, view
from harness import doctor as doctor_module
from harness import gate as gate_module
from harness import report as report_module
from harness.errors import BringUpError, DirtyTree
from harness.machine import BringUp, Request
from harness.state import State, fold, word
from harness.verdict import GREEN, NO_VERDICT, RED, WORDS
from plow.cli.common import JsonOption, console, emit, new_app, reporting
from stages.base import Stage

app = new_app("Takes an architecture from config.json to a served deployment through seven gated stages.")

Root = Annotated[Path, typer.Option("--root", help="folder of all bring-ups")]
Arch = Annotated[str, typer.Option("--arch", help="choose a bring-up when the root holds several")]
Target = Annotated[str, typer.Option("--target", help="choose a bring-up when the root holds several")]
Through = Annotated[int | None, typer.Option("--through", min=1, help="stop after this stage")]
Dirty = Annotated[bool, typer.Option("--allow-dirty", help="judge uncommitted files; recorded, and never counts in CI")]
Base = Annotated[str, typer.Option("--base", help="also let the guard compare the commit with this ref")]
ROOT = Path("bringups")


def stages() -> list[Stage]:
    return registry.load(locate.repository())


def say(line: str) -> None:
    console.print(line, markup=False, soft_wrap=True)


def chosen(root: Path, arch: str, target: str) -> BringUp:
    return BringUp(locate.only(root, arch, target), locate.repository(), stages())


def describe(bringup: BringUp) -> dict[str, Any]:
    """A bring-up for machines; `dirty` lists files that would keep it from being judged."""
    state = bringup.state()
    try:
        dirty = list(gate_module.clean_commit(bringup.repo, bringup.stages)[1])
        note = ""
    except DirtyTree as e:
        note, dirty = e.line(), [e.what]
    return {
        "arch": state.arch,
        "target": state.target,
        "home": str(bringup.home),
        "checkpoint": state.checkpoint,
        "params": dict(state.params),
        "ledger_lines": state.lines,
        "ledger_head": state.head,
        "dirty": dirty,
        "note": note,
        "green": all(state.stage(s.number).status == "green" for s in bringup.stages),
        "stages": stage_rows(state, bringup.stages),
        "next": bringup.next_command(),
    }


def stage_rows(state: State, known: list[Stage] | Any) -> list[dict[str, Any]]:
    rows = []
    for stage in known:
        now = state.stage(stage.number)
        rows.append(
            {
                "number": stage.number,
                "name": stage.name,
                "title": stage.title,
                "status": now.status,
                "word": word(now),
                "exit_code": now.exit_code,
                "headline": [list(r) for r in now.headline],
                "reasons": list(now.reasons),
                "commit": now.commit,
                "source_digest": now.source_digest,
                "evidence": now.evidence,
                "dirty": now.dirty,
                "time": now.time,
                "seconds": now.seconds,
            }
        )
    return rows


def finish(code: int) -> None:
    raise typer.Exit(code)


def go(bringup: BringUp, through: int | None, allow_dirty: bool, base: str, as_json: bool) -> None:
    """Run a bring-up with progress and end with its exit code."""
    before = fold(ledger.read(bringup.path))
    with view.Progress(console, list(bringup.stages), before) as progress:
        bringup.listen = progress
        code = bringup.run(through, allow_dirty, base)
    if as_json:
        emit({"schema": "plow.run/1", "exit_code": code, "verdict": WORDS.get(code, "red"), **describe(bringup)})
    elif code:
        say(f"stopped: {WORDS.get(code, 'red')}. Next: {bringup.next_command()}")
    finish(code)


def parse_params(pairs: list[str]) -> dict[str, Any]:
    """["rows=8", "name=x"] -> {"rows": 8, "name": "x"}; a value that is JSON is read as JSON."""
    params: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not key or not equals:
            raise BringUpError(f"--set needs key=value, got {pair!r}", "", "for instance --set max_ctx=2048")
        try:
            params[key] = json.loads(text)
        except ValueError:
            params[key] = text
    return params


@app.command()
def new(
    arch: Annotated[str, typer.Argument(help="architecture, e.g. llama")],
    checkpoint: Annotated[str, typer.Option(help="Hugging Face directory, or org/name on the hub")],
    target: Annotated[str, typer.Option(help="what to bring it up on")] = "cpu",
    agent: Annotated[str, typer.Option(help="who does the work of a red stage")] = "none",
    root: Root = ROOT,
    through: Through = None,
    bundle_out: Annotated[str, typer.Option(help="where the built bundle goes")] = "",
    param: Annotated[list[str] | None, typer.Option("--set", help="key=value for the stages; may be repeated")] = None,
    allow_dirty: Dirty = False,
    as_json: JsonOption = False,
) -> None:
    """Start a bring-up and run it as far as its gates allow; the same command again continues it."""
    bringup = BringUp((root / arch / target).absolute(), locate.repository(), stages())
    bringup.start(Request(arch, target, checkpoint, parse_params(param or []), bundle_out, agent))
    go(bringup, through, allow_dirty, "", as_json)


@app.command()
def run(
    root: Root = ROOT,
    arch: Arch = "",
    target: Target = "",
    through: Through = None,
    allow_dirty: Dirty = False,
    base: Base = "",
    as_json: JsonOption = False,
) -> None:
    """Work and judge from the first stage that is not green, up to the first red."""
    go(chosen(root, arch, target), through, allow_dirty, base, as_json)


@app.command()
def resume(
    root: Root = ROOT,
    arch: Arch = "",
    target: Target = "",
    through: Through = None,
    allow_dirty: Dirty = False,
    base: Base = "",
    as_json: JsonOption = False,
) -> None:
    """Continue where the ledger ends, after a red or a kill (the same as run)."""
    go(chosen(root, arch, target), through, allow_dirty, base, as_json)


@app.command()
def status(root: Root = ROOT, arch: Arch = "", target: Target = "", as_json: JsonOption = False) -> None:
    """Every stage, what was measured, why it is not green."""
    homes = locate.find(root, arch, target)
    if not homes:
        locate.only(root, arch, target)
    bringups = [BringUp(h.absolute(), locate.repository(), stages()) for h in homes]
    if as_json:
        emit({"schema": "plow.status/1", "bringups": [describe(b) for b in bringups]})
        return
    for bringup in bringups:
        out().print(view.status_table(bringup.state(), bringup.stages))
        out().print(f"next: {bringup.next_command()}", markup=False, soft_wrap=True)


@app.command("next")
def next_(root: Root = ROOT, arch: Arch = "", target: Target = "", as_json: JsonOption = False) -> None:
    """The one command to run now."""
    command = chosen(root, arch, target).next_command()
    emit({"schema": "plow.next/1", "command": command}) if as_json else typer.echo(command)


@app.command()
def prompt(
    number: Annotated[int, typer.Argument(help="stage")],
    root: Root = ROOT,
    arch: Arch = "",
    target: Target = "",
    as_json: JsonOption = False,
) -> None:
    """The stage's prompt, with its gate's current red lines."""
    text = chosen(root, arch, target).prompt(number)
    emit({"schema": "plow.prompt/1", "stage": number, "prompt": text}) if as_json else typer.echo(text)


@app.command()
def gate(
    number: Annotated[int, typer.Argument(help="stage")],
    root: Root = ROOT,
    arch: Arch = "",
    target: Target = "",
    allow_dirty: Dirty = False,
    base: Base = "",
    as_json: JsonOption = False,
) -> None:
    """Judge one stage of the committed tree now."""
    bringup = chosen(root, arch, target)
    stage = bringup.stage(number)
    with console.status(f"judging stage {number}: {stage.title}"):
        verdict = bringup.gate(number, allow_dirty, base)
    if as_json:
        emit(
            {
                "schema": "plow.gate/1",
                "stage": number,
                "name": stage.name,
                "verdict": verdict.word,
                "exit_code": verdict.exit_code,
                "reasons": list(verdict.reasons),
                "checks": list(verdict.checks),
                "not_run": list(verdict.not_run),
            }
        )
    else:
        for check in verdict.checks:
            typer.echo(f"{'ok ' if check['ok'] else 'RED'} {ci_output.check_line(check)}")
        for line in verdict.not_run:
            typer.echo(f"not run: {line}")
        for line in verdict.reasons:
            typer.echo(f"because {line}")
        typer.echo(f"stage {number} {stage.title}: {verdict.word}")
    finish(verdict.exit_code)


@app.command()
def report(
    root: Root = ROOT,
    arch: Arch = "",
    target: Target = "",
    out_file: Annotated[Path | None, typer.Option("--out", help="default: report.html beside the ledger")] = None,
    as_json: JsonOption = False,
) -> None:
    """Write the bring-up as one HTML file."""
    bringup = chosen(root, arch, target)
    path = out_file or bringup.home / "report.html"
    path.write_text(report_module.render(bringup), "utf-8")
    emit({"schema": "plow.report/1", "path": str(path)}) if as_json else typer.echo(str(path))


@app.command()
def ci(
    base: Annotated[str, typer.Option(help="ref that the pull request goes to")] = "main",
    root: Root = ROOT,
    junit: Annotated[Path | None, typer.Option(help="write JUnit XML here")] = None,
    annotations: Annotated[bool, typer.Option("--annotations", help="print GitHub annotations")] = False,
    as_json: JsonOption = False,
) -> None:
    """Judge HEAD as a pull request against BASE: guard, ledgers, touched stages measured again."""

    def follow(event: str, stage: Stage, details: dict[str, Any]) -> None:
        if event == "gate":
            say(f"judging {details['bringup']} stage {stage.number} {stage.title}")

    found = ci_module.run(locate.repository(), base, root, stages(), follow)
    if junit:
        junit.write_text(ci_output.junit(found), "utf-8")
    if annotations:
        print(*ci_output.github(found), sep="\n", file=sys.stderr if as_json else sys.stdout)
    if as_json:
        emit(found.as_dict())
    else:
        out().print(view.ci_table(found))
        typer.echo("green" if not found.exit_code else f"red: {len(found.reasons())} reasons")
    finish(found.exit_code)


@app.command()
def doctor(as_json: JsonOption = False) -> None:
    """What this machine has, and what each missing tool blocks."""
    found = doctor_module.examine()
    missing = [f.tool for f in found if f.needed and not f.ok]
    if as_json:
        emit({"schema": "plow.doctor/1", "ok": not missing, "missing": missing, "tools": [f.__dict__ for f in found]})
    else:
        out().print(view.doctor_table(found))
    finish(NO_VERDICT if missing else GREEN)


@app.command("self-test")
def self_test(
    gates: Annotated[bool, typer.Option("--gates", help="planted faults of the stages")] = False,
    guard: Annotated[bool, typer.Option("--guard", help="the catalogue of cheats")] = False,
    lean: Annotated[bool, typer.Option("--lean", help="corrupted payloads for Lean")] = False,
    rewrites: Annotated[bool, typer.Option("--rewrites", help="unsound rewrites")] = False,
    as_json: JsonOption = False,
) -> None:
    """Feed every judge known-bad subjects; each must be caught, and each control stay green. Default: all groups."""
    flags = {"gates": gates, "guard": guard, "lean": lean, "rewrites": rewrites}
    groups = [name for name, wanted in flags.items() if wanted]
    known = stages() if gates or not groups else []
    result = selftest.run(locate.repository(), known, groups, say)
    code = result.pop("exit_code")
    if as_json:
        emit(result)
    else:
        for line in [*result["failures"], *(f"not run: {n}" for n in result["not_run"])]:
            typer.echo(line)
        typer.echo(
            f"planted {result['planted']}, caught {result['caught']}; "
            f"controls {result['controls']}, green {result['controls_green']}"
        )
    finish(RED if code == RED or (code == NO_VERDICT and result["failures"]) else code)


def out() -> Console:
    """Tables for people go to stdout, as wide as a terminal is; a file gets long lines rather than broken ones."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else 160)


def main() -> None:
    """The console script; a typed error is one line on stderr, with --json one object on stdout."""
    arguments = [a for a in sys.argv[1:] if a != "--debug"]
    try:
        with reporting("--json" in arguments, "--debug" in sys.argv):
            app(arguments)
    except typer.Exit as e:
        sys.exit(e.exit_code)


if __name__ == "__main__":
    main()

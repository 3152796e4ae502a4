"""What every command line shares: JSON on stdout, words on stderr, one-line typed errors, exit codes."""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable
from typing import Any

import click
import typer
from rich.console import Console

from plow.errors import PlowError

console = Console(stderr=True, highlight=False)
"""For people; stdout belongs to results."""


def emit(data: dict[str, Any]) -> None:
    """Print one JSON object with a `schema` field on stdout."""
    if "schema" not in data:
        raise ValueError("a JSON result needs a schema field")
    sys.stdout.write(json.dumps(data, default=str) + "\n")
    sys.stdout.flush()


def run_app(app: typer.Typer, argv: list[str] | None = None) -> int:
    """Run a typer app; a PlowError becomes one line on stderr (with --json: one object on stdout) and its exit code.

    `--debug` anywhere on the command line shows the traceback. Bad usage exits with 2.
    """
    args = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in args
    args = [a for a in args if a != "--debug"]
    try:
        code = typer.main.get_command(app).main(args, standalone_mode=False)
        return code if isinstance(code, int) else 0
    except PlowError as e:
        if debug:
            traceback.print_exc()
        if "--json" in args:
            emit(e.as_dict())
        console.print(f"[red]{e.kind}[/red]: {e.line()}", soft_wrap=True, markup=True)
        return e.exit_code
    except click.exceptions.Exit as e:
        return e.exit_code
    except (click.ClickException, click.Abort) as e:
        if isinstance(e, click.ClickException):
            e.show()
        return 2
    except KeyboardInterrupt:
        return 130


def main_of(app: typer.Typer) -> Callable[[], None]:
    """The entry point of a console script."""

    def main() -> None:
        sys.exit(run_app(app))

    return main

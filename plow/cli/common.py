"""What every command shares: one JSON object on stdout, logs on stderr, one-line errors and their exit codes."""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from rich.console import Console

from plow.errors import PlowError

console = Console(stderr=True, highlight=False)
"""Progress and messages for people; stdout belongs to results."""

JsonOption = Annotated[bool, typer.Option("--json", help="one JSON object on stdout")]
DebugOption = Annotated[bool, typer.Option("--debug", help="show the traceback of an error")]


def new_app(help: str) -> typer.Typer:
    """A command line whose errors are ours and not a pretty-printed stack."""
    return typer.Typer(help=help, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


def emit(result: dict[str, Any]) -> None:
    """One JSON object on stdout. `result` names its schema."""
    sys.stdout.write(json.dumps(result) + "\n")
    sys.stdout.flush()


@contextmanager
def reporting(as_json: bool = False, debug: bool = False) -> Iterator[None]:
    """Turns an error of the block into a message and an exit code.

    PlowError: its line and its code. Anything else is a bug of ours and is called so. With `debug` the traceback comes
    first. With `as_json` the error is one JSON object on stdout.
    """
    try:
        yield
    except PlowError as e:
        _report(e.as_dict(), f"error: {e.line()}", as_json, debug)
        raise typer.Exit(e.exit_code) from e
    except KeyboardInterrupt as e:
        _report({"schema": "plow.error/1", "error": "Interrupted", "what": "interrupted", "where": "", "fix": ""},
                "interrupted", as_json, debug)
        raise typer.Exit(130) from e
    except BrokenPipeError as e:
        # The reader of our output has left (`| head`): nothing is wrong, and nothing more can be said.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(141) from e
    except (typer.Exit, typer.Abort, SystemExit):
        raise
    except Exception as e:
        what = f"internal error: {type(e).__name__}: {e}"
        fix = "run again with --debug and report the traceback"
        _report({"schema": "plow.error/1", "error": "InternalError", "what": what, "where": "", "fix": fix},
                f"{what} -> {fix}", as_json, debug)
        raise typer.Exit(2) from e


def _report(body: dict[str, str], line: str, as_json: bool, debug: bool) -> None:
    if debug:
        traceback.print_exc()
    if as_json:
        emit(body)
    else:
        console.print(line, style="bold red", markup=False, soft_wrap=True)

"""Winners of the tune database as compile options."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from plow.tune.database import winners

if TYPE_CHECKING:
    from plow.compile import Options


def apply_tuned(options: Options, path: Path) -> list[str]:
    """Set what the user left open to the winners; returns a line a choice. What the user set wins over the database."""
    lines = []
    for option, choice in winners(path, options.target).items():
        if option == "workers" and options.workers == 0:
            options.workers = choice["value"]
        elif option != "workers":
            options.interpreter.setdefault(option, choice["value"])
        else:
            continue
        options.sources[option] = choice["source"]
        lines.append(f"{option} = {choice['value']} ({choice['source']})")
    return lines

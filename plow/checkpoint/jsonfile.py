"""Read a JSON object from a file, with typed errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from plow.errors import CheckpointError


def read_json(path: Path, optional: bool = False) -> dict[str, Any]:
    """The object in `path`; {} when it is absent and `optional`. Raises CheckpointError when it is absent, unreadable,
    no JSON, or JSON that is no object."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if optional:
            return {}
        raise CheckpointError(
            f"{path.name} is missing", str(path.parent), "pass a Hugging Face checkpoint directory"
        ) from None
    except OSError as e:
        raise CheckpointError(
            f"cannot read {path.name}: {e.strerror}", str(path.parent), "check its permissions"
        ) from e
    except ValueError as e:
        raise CheckpointError(f"{path.name} is no valid JSON: {e}", str(path.parent), "fetch the file again") from e
    if not isinstance(value, dict):
        raise CheckpointError(f"{path.name} holds no JSON object", str(path.parent), "fetch the file again")
    return value

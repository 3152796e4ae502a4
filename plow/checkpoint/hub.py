"""Turn what a user passes as `--checkpoint` into a local directory."""

from __future__ import annotations

import re
from pathlib import Path

from plow.errors import CheckpointError

REPO_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
FILES = ["*.json", "*.safetensors", "*.jinja", "*.txt", "*.model"]
SKIP = ["consolidated*", "original/*", "onnx/*", "*.bin", "*.gguf"]


def resolve(ref: str | Path, revision: str | None = None) -> Path:
    """A directory that exists, or the local snapshot of the hub repository `org/name` (downloaded when needed).

    Raises CheckpointError when it is neither, or when the repository cannot be fetched (no network, gated, unknown).
    """
    path = Path(ref).expanduser()
    if path.is_dir():
        return path
    if path.exists():
        raise CheckpointError(
            "a checkpoint is a directory, this is a file", str(path), "pass the directory that holds config.json"
        )
    if not REPO_ID.fullmatch(str(ref)):
        raise CheckpointError(
            "no such checkpoint directory", str(ref), "pass a directory, or org/name to fetch it from the hub"
        )
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(str(ref), revision=revision, allow_patterns=FILES, ignore_patterns=SKIP))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError, ValueError) as e:
        reason = str(e).strip().splitlines()[0] if str(e).strip() else type(e).__name__
        raise CheckpointError(
            f"cannot fetch {ref}: {reason}",
            "Hugging Face hub",
            "check the network and the name, or pass a local directory",
        ) from e

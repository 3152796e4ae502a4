"""The checkpoint directory: config, tensors over all shards, tokenizer files, generation config, digest."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from plow.checkpoint.generation import GenerationConfig, load_generation
from plow.checkpoint.jsonfile import read_json
from plow.checkpoint.safetensors_file import DTYPES, SafetensorsFile, TensorInfo, read_header
from plow.errors import CheckpointError

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "generation_config.json",
)
DUPLICATES = "consolidated"
"""Prefix of weight files in another layout that some repositories ship beside the Hugging Face shards."""


@dataclass
class Checkpoint:
    """An opened and checked checkpoint. tensors: every tensor of every shard, by name. No tensor data is read until
    `tensor` is called. Open it with `Checkpoint.open`."""

    path: Path
    config: dict[str, Any]
    tensors: dict[str, TensorInfo]
    files: list[SafetensorsFile]
    _maps: dict[Path, np.memmap] = field(default_factory=dict, repr=False)

    @classmethod
    def open(cls, path: str | Path) -> Checkpoint:
        """Read config.json and all headers. Raises CheckpointError for everything that is damaged, missing or
        contradictory; see `read_files`."""
        path = Path(path)
        if not path.is_dir():
            raise CheckpointError("no such checkpoint directory", str(path), "pass a Hugging Face checkpoint directory")
        config = read_json(path / "config.json")
        files = read_files(path)
        tensors = {name: t for f in files for name, t in f.tensors.items()}
        return cls(path, config, tensors, files)

    def tensor(self, name: str) -> np.ndarray:
        """Read-only view of the tensor in the mapped file (no copy); BF16 as ml_dtypes.bfloat16."""
        info = self.tensors.get(name)
        if info is None:
            raise CheckpointError(f"no tensor {name!r}", str(self.path), "see `tensors` for the names")
        if info.file not in self._maps:
            self._maps[info.file] = np.memmap(info.file, np.uint8, "r")
        return np.ndarray(info.shape, DTYPES[info.dtype], self._maps[info.file], info.start)

    @property
    def tokenizer_files(self) -> list[Path]:
        """The tokenizer's and the generation config's files that exist."""
        return [self.path / name for name in TOKENIZER_FILES if (self.path / name).exists()]

    @cached_property
    def token_ids(self) -> dict[str, int]:
        """Text of every token, added ones included -> id; empty when there is no tokenizer.json."""
        tokenizer = read_json(self.path / "tokenizer.json", optional=True)
        vocab = tokenizer.get("model", {}).get("vocab", {})
        ids = dict(vocab) if isinstance(vocab, dict) else {piece: i for i, (piece, _) in enumerate(vocab)}
        return ids | {t["content"]: t["id"] for t in tokenizer.get("added_tokens", [])}

    @property
    def tokenizer_size(self) -> int:
        """One more than the largest token id, 0 without tokenizer.json. The model's vocabulary may be padded beyond
        it; a padded id must never be sampled."""
        return max(self.token_ids.values(), default=-1) + 1

    @cached_property
    def generation(self) -> GenerationConfig:
        return load_generation(self.path, self.config, self.token_ids.get)

    def digest(self, full: bool = False) -> str:
        """ "sha256:<hex>" of config.json and of every weight file's name, size and header.

        That pins names, shapes, dtypes and sizes but not the values; `full` hashes every byte of the weight files too.
        """
        h = hashlib.sha256((self.path / "config.json").read_bytes())
        for f in sorted(self.files, key=lambda f: f.path.name):
            h.update(f"\0{f.path.name}\0{f.size}\0".encode())
            h.update(f.header)
            if full:
                with f.path.open("rb") as data:
                    h.update(hashlib.file_digest(data, "sha256").digest())
        return f"sha256:{h.hexdigest()}"


def read_files(path: Path) -> list[SafetensorsFile]:
    """Headers of the directory's weight files.

    Raises CheckpointError for: no weights; weights in another format; shards without an index; a stray file beside
    what the index (or model.safetensors) names; a shard that the index names and the disk lacks; a tensor missing
    from its shard, in another shard than the index says, or in no index entry.
    """
    present = {f.name for f in path.glob("*.safetensors") if not f.name.startswith(DUPLICATES)}
    has_index = (path / INDEX).exists()
    if not present and not has_index:
        others = sorted(f.name for pattern in ("*.bin", "*.gguf", "*.pt", "*.pth") for f in path.glob(pattern))
        hint = f"convert {others[0]} to safetensors" if others else "fetch the weight files"
        raise CheckpointError("no safetensors file in the checkpoint", str(path), hint)
    weight_map = _weight_map(path) if has_index else {}
    wanted = set(weight_map.values()) if has_index else {SINGLE}
    if not has_index and SINGLE not in present:
        raise CheckpointError(f"shards without {INDEX}: {', '.join(sorted(present)[:3])}", str(path), f"fetch {INDEX}")
    stray = sorted(present - wanted)
    if stray:
        owner = INDEX if has_index else SINGLE
        raise CheckpointError(
            f"stray weight file {stray[0]} beside {owner}", str(path), "remove it, or the index that omits it"
        )
    missing = sorted(wanted - present)
    if missing:
        raise CheckpointError(
            f"shard {missing[0]} is named by the index and missing on disk", str(path), "fetch the shard"
        )
    files = [read_header(path / name) for name in sorted(wanted)]
    if has_index:
        _check_index(weight_map, files)
    return files


def _weight_map(path: Path) -> dict[str, str]:
    weight_map = read_json(path / INDEX).get("weight_map")
    ok = (
        isinstance(weight_map, dict)
        and weight_map
        and all(isinstance(f, str) and Path(f).name == f for f in weight_map.values())
    )
    if not ok:
        raise CheckpointError(
            "the index has no usable weight_map of tensor -> file name", INDEX, "fetch the index again"
        )
    return weight_map  # type: ignore[return-value]


def _check_index(weight_map: dict[str, str], files: list[SafetensorsFile]) -> None:
    for f in files:
        for name in f.tensors:
            owner = weight_map.get(name)
            if owner is None:
                raise CheckpointError(
                    f"tensor {name!r} is in the shard but not in the index", f.path.name, "fetch index and shards again"
                )
            if owner != f.path.name:
                raise CheckpointError(
                    f"tensor {name!r} is in this shard, the index assigns it to {owner}",
                    f.path.name,
                    "fetch index and shards again",
                )
    held = {name for f in files for name in f.tensors}
    for name, owner in weight_map.items():
        if name not in held:
            raise CheckpointError(
                f"tensor {name!r} is assigned to this shard and missing in it", owner, "fetch index and shards again"
            )

"""Loading a bundle directory. Everything is checked before anything runs; any doubt is a BundleError.

    manifest.json  model.pkt  weights.bin  interp.so  config.json  tokenizer.json ...  certificates/D.json

manifest.json (schema plow.bundle/1) gives the target and the sha256 of every other file: `packets`, `weights` and
`interpreter` as {"file", "sha256"}, the rest under `files`. weights.bin is the image of the arena from byte 0: the
segments that never change. A certificate names the digest of the model.pkt that it is about.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from plow.errors import BundleError, PacketError
from plow.packet import container
from plow.packet.container import PacketFile
from plow.runtime.step import Limits

SCHEMA = "plow.bundle/1"
TARGETS = ("cpu", "h200")
PARTS = ("packets", "weights", "interpreter")
REQUIRED_CERTIFICATES = ("D",)
"""Checkpoints that must be certified: D, the counter protocol covers every dependency and cannot deadlock."""
REBUILD = "build the bundle again with plowc"


@dataclass(frozen=True)
class Bundle:
    path: Path
    manifest: dict[str, Any]
    packets: PacketFile
    limits: Limits
    certified: bool
    """Every required certificate is present and about these packet bytes."""
    uncertified_reason: str = ""

    @property
    def target(self) -> str:
        return str(self.packets.header["target"])

    @property
    def arena_bytes(self) -> int:
        return int(self.packets.header["arena"]["bytes"])

    @property
    def segments(self) -> dict[str, tuple[int, int]]:
        """Arena segments: name -> (offset, bytes)."""
        return {name: (int(a), int(n)) for name, (a, n) in self.packets.header["arena"]["segments"].items()}

    @property
    def digests(self) -> dict[str, str]:
        return _digests(self.manifest, self.path)

    @property
    def synthetic(self) -> bool:
        """A shape bundle: its weights are random and drawn on the device."""
        return "synthetic" in self.manifest["weights"]

    @property
    def packet_digest(self) -> str:
        """sha256 of model.pkt, which certificates name."""
        return str(self.manifest["packets"]["sha256"])

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        return tuple(self.manifest.get("eos_token_ids", ()))

    def file(self, part: str) -> Path:
        """Path of a checked part: "packets", "weights" or "interpreter"."""
        return self.path / self.manifest[part]["file"]

    def weights(self) -> np.ndarray:
        """u8, read-only: the image of the arena's constant segments. Raises BundleError for a shape bundle."""
        if self.synthetic:
            raise BundleError("a shape bundle has no weights to read", str(self.path),
                              "run it on its device, which draws them")
        return np.memmap(self.file("weights"), np.uint8, mode="r")


def load(path: Path | str, allow_uncertified: bool = False) -> Bundle:
    """Check and open a bundle. Raises BundleError: missing or damaged file, unknown target, missing or failing
    certificate (unless `allow_uncertified`; the bundle then says why it is not certified)."""
    path = Path(path)
    manifest = _manifest(path)
    if manifest.get("target") not in TARGETS:
        raise BundleError(f"bundle is for target {manifest.get('target')!r}, this plowrt runs {', '.join(TARGETS)}",
                          str(path), REBUILD)
    for name, digest in _digests(manifest, path).items():
        _check_file(path, name, digest)
    packet_file = path / manifest["packets"]["file"]
    try:
        packets = container.load(packet_file)
    except PacketError as e:
        raise BundleError(e.what, str(packet_file), REBUILD) from e
    limits = _check_header(packets, manifest, path)
    reason = _uncertified(path, manifest["packets"]["sha256"])
    if reason and not allow_uncertified:
        raise BundleError(reason, str(path), "certify it with plowc, or pass --allow-uncertified")
    return Bundle(path, manifest, packets, limits, not reason, reason)


def _manifest(path: Path) -> dict[str, Any]:
    file = path / "manifest.json"
    try:
        manifest = json.loads(file.read_text())
    except OSError as e:
        raise BundleError(f"cannot read the manifest: {e.strerror}", str(file), REBUILD) from None
    except ValueError as e:
        raise BundleError(f"the manifest is no JSON: {e}", str(file), REBUILD) from None
    if not isinstance(manifest, dict) or manifest.get("schema") != SCHEMA:
        found = manifest.get("schema") if isinstance(manifest, dict) else type(manifest).__name__
        raise BundleError(f"schema is {found!r}, this plowrt reads {SCHEMA!r}", str(file), REBUILD)
    if not isinstance(manifest.get("files"), dict):
        raise BundleError("the manifest lists no files", str(file), REBUILD)
    return manifest


def _digests(manifest: dict[str, Any], path: Path) -> dict[str, str]:
    """File name -> sha256 of every file that the manifest answers for."""
    found: dict[str, Any] = {}
    for part in PARTS:
        entry = manifest.get(part)
        if part == "weights" and isinstance(entry, dict) and "synthetic" in entry:
            continue
        if not isinstance(entry, dict) or not isinstance(entry.get("file"), str):
            raise BundleError(f"the manifest names no {part} file", str(path / "manifest.json"), REBUILD)
        found[entry["file"]] = entry.get("sha256")
    found |= manifest["files"]
    for name, digest in found.items():
        if not isinstance(digest, str):
            raise BundleError(f"the manifest gives no sha256 for {name}", str(path / "manifest.json"), REBUILD)
    return found


def _check_file(path: Path, name: str, expected: str) -> None:
    file = path / name
    if not file.resolve().is_relative_to(path.resolve()):
        raise BundleError(f"manifest entry {name} leaves the bundle", str(path / "manifest.json"), REBUILD)
    if not file.is_file():
        raise BundleError("file is missing", str(file), REBUILD)
    with file.open("rb") as f:
        digest = hashlib.file_digest(f, "sha256").hexdigest()
    if digest != expected:
        raise BundleError(f"sha256 is {digest[:12]}..., the manifest says {expected[:12]}...", str(file), REBUILD)


def _check_header(packets: PacketFile, manifest: dict[str, Any], path: Path) -> Limits:
    header, where = packets.header, str(path / manifest["packets"]["file"])
    if header.get("target") != manifest["target"]:
        raise BundleError(f"packets are for target {header.get('target')!r}, the manifest says {manifest['target']!r}",
                          where, REBUILD)
    arena = header.get("arena")
    if not (isinstance(arena, dict) and isinstance(arena.get("bytes"), int)
            and isinstance(arena.get("segments"), dict)):
        raise BundleError("header has no arena layout", where, REBUILD)
    if any(a < 0 or n < 0 or a + n > arena["bytes"] for a, n in arena["segments"].values()):
        raise BundleError("an arena segment leaves the arena", where, REBUILD)
    weights = manifest["weights"]
    if "file" in weights and (path / weights["file"]).stat().st_size > arena["bytes"]:
        raise BundleError("the weight image is larger than the arena", where, REBUILD)
    if not packets.programs:
        raise BundleError("no programs", where, REBUILD)
    return Limits.from_header(header, where)


def _uncertified(path: Path, packet_digest: str) -> str:
    """Why the packets are not certified; "" if they are."""
    for name in REQUIRED_CERTIFICATES:
        file = path / "certificates" / f"{name}.json"
        if not file.is_file():
            return f"certificate {name} is missing"
        try:
            certificate = json.loads(file.read_text())
        except ValueError:
            return f"certificate {name} is no JSON"
        if not isinstance(certificate, dict) or certificate.get("verdict") != "certified":
            return f"certificate {name} does not say certified"
        if certificate.get("packet_sha256") != packet_digest:
            return f"certificate {name} is about other packets"
    return ""

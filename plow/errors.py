"""Typed errors: what went wrong, where, and what to do. Every room may import this file; it imports nothing."""

from __future__ import annotations


class PlowError(Exception):
    """Base of all errors shown to a user as one line.

    what: the fact, e.g. "tensor has the wrong shape"; where: file, tensor or packet; fix: what the reader can do.
    `exit_code` follows the harness: 1 red, 2 no verdict (bad input, missing tool).
    """

    exit_code = 2

    def __init__(self, what: str, where: str = "", fix: str = "") -> None:
        self.what, self.where, self.fix = what, where, fix
        super().__init__(self.line())

    @property
    def kind(self) -> str:
        return type(self).__name__

    def line(self) -> str:
        place = f" [{self.where}]" if self.where else ""
        hint = f" -> {self.fix}" if self.fix else ""
        return f"{self.what}{place}{hint}"

    def as_dict(self) -> dict[str, str]:
        return {"schema": "plow.error/1", "error": self.kind, "what": self.what, "where": self.where, "fix": self.fix}


class ConfigError(PlowError):
    """config.json lacks a field, or a field has a value that the family does not support."""


class CheckpointError(PlowError):
    """The checkpoint directory, its index or a tensor is damaged, incomplete or unexpected."""


class UnsupportedArchitecture(ConfigError):
    """No model family of this tree builds the architecture."""


class GraphError(PlowError):
    """A graph violates the op table; raised by the IR verifier after a pass."""


class LoweringError(PlowError):
    """A graph node has no packet form on the target, or a dimension does not fit the ABI."""


class PacketError(PlowError):
    """Bytes do not decode to packets of this ABI."""


class BundleError(PlowError):
    """A bundle is damaged, incomplete, uncertified or made for another target."""


class VerifyError(PlowError):
    """Lean rejected a payload, or no Lean is available."""

    exit_code = 1


class RequestError(PlowError):
    """A generation request cannot be served as asked (context too long, bad sampling parameter)."""


class StuckDependency(PlowError):
    """A wait ran into its time limit; names the packet, the counter and the producers that did not signal."""

    exit_code = 1


class ToolMissing(PlowError):
    """A tool or an optional extra is needed and not installed."""

"""Typed errors of the harness; each is one line to its reader and one exit code to its caller."""

from __future__ import annotations

from plow.errors import PlowError
from stages.base import Contended

__all__ = [
    "AgentError",
    "BringUpError",
    "Contended",
    "DirtyTree",
    "EvidenceError",
    "GitError",
    "LeaseTimeout",
    "LedgerError",
    "PromptError",
    "SourceError",
]


class LedgerError(PlowError):
    """A ledger line is damaged, missing or out of order; the message names the line."""

    exit_code = 1


class EvidenceError(PlowError):
    """An evidence file is missing, edited, or about something else than the ledger says."""

    exit_code = 1


class GitError(PlowError):
    """Git is missing, or a commit or repository is not what a command needs."""


class SourceError(PlowError):
    """A stage's source globs match nothing, or a checkpoint can not be digested."""


class DirtyTree(PlowError):
    """Files that decide a verdict differ from the commit that would be judged."""


class BringUpError(PlowError):
    """A bring-up does not exist, exists already with another subject, or is asked for something it lacks."""


class PromptError(PlowError):
    """A prompt template is missing or uses a variable that does not exist."""


class AgentError(PlowError):
    """The agent driver is unknown or can not start."""


class LeaseTimeout(PlowError):
    """The machine lease for timed gates was not free in time."""

    exit_code = 75

"""What a checkpoint is: a claim about a packet file, its Lean theorem, and how its payloads are built."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from plow.packet.container import PacketFile

ALLOWED_AXIOMS = frozenset({"propext", "Quot.sound", "Classical.choice"})


@dataclass(frozen=True)
class Fault:
    """Why a payload is rejected. proposition: a Lean statement that holds exactly because of the fault."""

    message: str
    proposition: str


class Subject(Protocol):
    """One thing to certify, usually one program of a packet file."""

    title: str

    @property
    def counts(self) -> dict[str, int]: ...

    def lean(self) -> str:
        """Lean definitions, ending with `payload`."""
        ...


@dataclass(frozen=True)
class Checkpoint:
    """build None: not certified yet, reported as not run.

    theorem: proved once in the library; also: further theorems that docs/verification.md relies on;
    check, statement: the Lean terms that a certificate proves of `payload`;
    diagnose: why a payload is rejected, for people, first fault first; never a verdict.
    """

    letter: str
    title: str
    claim: str
    theorem: str = ""
    also: tuple[str, ...] = ()
    module: str = ""
    check: str = ""
    statement: str = ""
    build: Callable[[PacketFile], Sequence[Subject]] | None = None
    diagnose: Callable[[Any], Sequence[Fault]] = lambda subject: ()

    @property
    def namespace(self) -> str:
        return self.theorem.rpartition(".")[0]

    def header(self) -> str:
        return f"prelude\nimport {self.module}\nnamespace {self.namespace}\nset_option maxRecDepth 1000000\n"

    def source(self, subject: Subject) -> str:
        """The Lean file of a certificate. The kernel evaluates `check`; `certified` is what follows from it."""
        return (f"{self.header()}{subject.lean()}theorem checked : {self.check} = true := by decide +kernel\n"
                f"theorem certified : {self.statement} := {self.theorem} checked\n#print axioms certified\n")

    def refutation(self, subject: Subject, fault: Fault) -> str:
        """A Lean file that is accepted only if the fault is real."""
        return (f"{self.header()}{subject.lean()}theorem rejected : {self.check} = false := by decide +kernel\n"
                f"theorem fault : {fault.proposition} := by decide +kernel\n")

"""A check of the machine code: no consumer gives shared memory back while its own loads from it are in flight.

A consumer warp reads a ring stage by LDS; one lane then arrives at the stage's `empty` mbarrier, and the loader's bulk
copy overwrites the stage. An arrive does not wait for loads in flight, and the assembler moves it before them as long
as no register depends on them. The sources prevent that by `landed` (kernels/cuda/ptx.cuh); this reads in the cubin
whether they succeed, on every path from the kernel's entry.

Control bits of an instruction (sm_70 to sm_90), bits 105 to 125 of its 128:

    105..108 stall   109 yield   110..112 scoreboard of its result   113..115 of its sources   116..121 wait mask

A load counts its scoreboard up until its registers are written; an instruction whose wait mask names a scoreboard is
issued once that is zero, so all loads that used it have landed. State of the analysis: for each scoreboard the loads
that may be in flight; paths that meet are united, calls are followed with their return addresses.

Trusted beside nvdisasm and the bits above: LDS and LDSM of one warp land in order, so that a load without a scoreboard
has landed with the next load that has one, guarded or not (ptxas reads registers relying on exactly that). Lanes that
diverged are followed one by one: a load of one lane and an arrive of another count only if their paths have met in
between. Not judged: the loader's arrives, which announce bytes (`expect_tx`), and atomics. Every other load from shared
memory counts, whatever it reads, and every other arrive, whatever its barrier guards: stricter than needed, and simple.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sysconfig
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from plow.errors import PlowError, ToolMissing

SCOREBOARDS = 6
NO_SCOREBOARD = 7
NOT_YET, NEVER = SCOREBOARDS, SCOREBOARDS + 1
"""Loads without a scoreboard: those that the next load in order will cover, and those that nothing covers."""
Pending = tuple[int, ...]
"""By scoreboard 0..5, NOT_YET and NEVER: a bit set of the loads that may be in flight."""
NOTHING: Pending = (0,) * (SCOREBOARDS + 2)
MAX_CALLS = 8
"""Calls inside calls. More are a recursion, which no kernel of ours has."""
ARCHITECTURE = re.compile(r"^\s*\.target\s+sm_(7|8|9)\d", re.MULTILINE)
SHOWN = 4
UNKNOWN = "teach plow/verify/sass.py this form; until then nothing is proved about the cubin"


class SassError(PlowError):
    """The disassembly holds something that this check does not understand: no verdict."""


class LoadInFlight(PlowError):
    """A barrier is given back while loads from shared memory may be in flight; names both."""

    exit_code = 1


@dataclass(frozen=True)
class Instruction:
    """scoreboard: counted up until its result is there, or NO_SCOREBOARD; waits: bit b = waits for scoreboard b;
    source: "file:line" with its callers, where the cubin says."""

    address: int
    guard: str
    opcode: str
    operands: str
    scoreboard: int
    waits: int
    source: str = ""

    def __str__(self) -> str:
        text = f"{self.guard} {self.opcode} {self.operands}".strip()
        return f"{self.address:#x} {text}" + (f" ({self.source})" if self.source else "")

    @property
    def in_order(self) -> bool:
        """A load from shared memory, which lands after those before it."""
        return self.opcode.split(".")[0] in ("LDS", "LDSM")

    @property
    def loads(self) -> bool:
        """In order, or by a generic address, which may be one of shared memory."""
        return self.in_order or self.opcode.split(".")[0] == "LD"

    @property
    def arrives(self) -> bool:
        """At an mbarrier, without announcing bytes. A1T0: arrives once, no bytes; ART0: by a register; none: A1TR."""
        parts = self.opcode.split(".")
        if parts[0] == "ARRIVES":
            return True
        kind = next((p for p in parts if re.fullmatch(r"A[01R]T[01RX]", p)), "A1TR")
        return parts[:2] == ["SYNCS", "ARRIVE"] and kind[:2] != "A0" and kind[2:] != "TR"


@dataclass
class Code:
    """A section of code. labels: name -> index in `code`; kernel: a launch enters it at its first instruction."""

    name: str
    kernel: bool = False
    code: list[Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Violation:
    """At `arrive` the `loads` may be in flight."""

    arrive: Instruction
    loads: tuple[Instruction, ...]

    def error(self, where: str) -> LoadInFlight:
        shown = "; ".join(map(str, self.loads[:SHOWN]))
        more = f"; and {len(self.loads) - SHOWN} more" if len(self.loads) > SHOWN else ""
        return LoadInFlight(
            f"{self.arrive} may be issued while shared memory is still being read: {shown}{more}",
            where,
            "before the arrive call landed() on values that depend on all of these loads (kernels/cuda/ptx.cuh)",
        )


@dataclass(frozen=True)
class Entry:
    """What was found in a kernel: loads from shared memory, arrives, and arrives with loads in flight."""

    name: str
    instructions: int
    loads: int
    arrives: int
    violations: tuple[Violation, ...]


def check(cubin: Path, nvdisasm: str = "") -> list[Entry]:
    """Every kernel of the cubin. Raises ToolMissing without nvdisasm, SassError when the code is not understood."""
    return check_text(disassemble(cubin, find_nvdisasm(nvdisasm)), str(cubin))


def check_text(text: str, where: str = "") -> list[Entry]:
    """The same for the text that `nvdisasm -c -gi -hex` prints."""
    found = [_entry(c, where) for c in parse(text, where) if c.kernel]
    if not found:
        raise SassError("no kernel in the disassembly", where, "pass a linked cubin")
    return found


def find_nvdisasm(choice: str = "") -> str:
    """`choice`, else $PLOW_NVDISASM, else that of PATH, else the wheel's. One that was asked for and is not there is an
    error, not a reason to take another. Raises ToolMissing."""
    for asked, where in ((choice, "nvdisasm"), (os.environ.get("PLOW_NVDISASM", ""), "PLOW_NVDISASM")):
        if asked:
            found = shutil.which(asked)
            if found is None:
                raise ToolMissing(f"no disassembler at {asked!r}", where, "name an nvdisasm that can be executed")
            return found
    wheels = Path(sysconfig.get_paths()["purelib"]) / "nvidia"
    found = shutil.which("nvdisasm") or next(map(str, sorted(wheels.glob("*/bin/nvdisasm"))), None)
    if found is None:
        raise ToolMissing("no disassembler", "nvdisasm", "install the CUDA toolkit, or pip install plow[cuda]")
    return found


def disassemble(cubin: Path, nvdisasm: str) -> str:
    """Raises SassError when the tool refuses the file, ToolMissing when it does not start."""
    try:
        done = subprocess.run([nvdisasm, "-c", "-gi", "-hex", cubin], capture_output=True, text=True, check=False)
    except OSError as e:
        raise ToolMissing(f"the disassembler does not start: {e.strerror}", nvdisasm, "name another one") from None
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()
        what = f"nvdisasm fails: {lines[0] if lines else done.returncode}"
        raise SassError(what, str(cubin), "take one at least as new as the nvcc that made the cubin")
    return done.stdout


# -- reading -----------------------------------------------------------------------------------------------------------
_SECTION = re.compile(r'\s*\.section\s+"?([^",\s]+)')
_KERNEL = re.compile(r'\s*\.other\s+(\S+?),\s*@"?STO_CUDA_ENTRY')
_LABEL = re.compile(r"([^\s:]+):\s*$")
_LINE = re.compile(r'\s*//## File "([^"]*)", line (\d+)(.*)')
_SECOND = re.compile(r"\s*/\* 0x([0-9a-f]{16}) \*/\s*$")
_FIRST = re.compile(
    r"\s*/\*([0-9a-f]{4,})\*/\s+(?:(@!?U?P\w+)\s+)?([A-Z][\w.]*)\s*(.*?)[\s;]*" + _SECOND.pattern.removeprefix(r"\s*")
)


def parse(text: str, where: str = "") -> list[Code]:
    """The sections of code. Raises SassError for another architecture or an instruction without its 128 bits."""
    if not ARCHITECTURE.search(text):
        raise SassError("the code is not of sm_70 to sm_90, whose control bits are known", where, UNKNOWN)
    found: list[Code] = []
    first: re.Match[str] | None = None
    sources: list[str] = []
    inlined = False
    for number, line in enumerate(text.splitlines(), 1):
        at = f"{where} line {number}".strip()
        second = _SECOND.match(line)
        if (second is None) != (first is None):
            raise SassError(f"half an instruction: {line.strip()!r}", at, "disassemble with nvdisasm -c -hex")
        if first is not None and second is not None:
            found[-1].code.append(_instruction(first, int(second[1], 16), " < ".join(sources)))
            first = None
        elif m := _SECTION.match(line):
            found.append(Code(m[1].removeprefix(".text.")))
            sources, inlined = [], False
        elif m := _LINE.match(line):
            sources = [*(sources if inlined else []), f"{Path(m[1]).name}:{m[2]}"]
            inlined = "inlined at" in m[3]
        elif found and (m := _KERNEL.match(line)):
            found[-1].kernel = found[-1].kernel or m[1] == found[-1].name
        elif found and (m := _LABEL.match(line)):
            found[-1].labels[m[1]] = len(found[-1].code)
        elif found and (m := _FIRST.match(line)):
            first = m
        elif re.match(r"\s*/\*[0-9a-f]{4,}\*/", line):
            raise SassError(f"no instruction: {line.strip()!r}", at, "disassemble with nvdisasm -c -hex")
    return [c for c in found if c.code]


def _instruction(first: re.Match[str], high: int, source: str) -> Instruction:
    guard = first[2] or ""
    control = high >> 105 - 64
    return Instruction(
        int(first[1], 16),
        "" if guard in ("@PT", "@UPT") else guard,
        first[3],
        first[4],
        control >> 5 & 7,
        control >> 11 & (1 << SCOREBOARDS) - 1,
        source,
    )


# -- control flow ------------------------------------------------------------------------------------------------------
Place = tuple[int, tuple[int, ...]]
"""Where a lane is: index of the instruction, and those that the open calls return to."""


class _Flow:
    """Successors of the instructions of one section."""

    def __init__(self, code: Code, where: str) -> None:
        self.code, self.where = code, where
        self.meets: dict[str, set[int]] = defaultdict(set)  # convergence barrier -> where its lanes go on
        for i, x in enumerate(code.code):
            if x.opcode == "BSSY":
                self.meets[x.operands.split(",")[0]].update(self._targets(i))

    def after(self, place: Place) -> list[Place]:
        """Raises SassError for a jump that cannot be followed."""
        i, calls = place
        x = self.code.code[i]
        op = x.opcode.split(".")[0]
        falls = [(i + 1, calls)]
        if op in ("EXIT", "KILL"):
            found = falls if x.guard else []
        elif op == "RET":
            if not calls:
                raise self._lost(i, "returns from the kernel")
            found = [(calls[-1], calls[:-1]), *(falls if x.guard else [])]
        elif op == "CALL":
            found = [self._call(i, calls), *(falls if x.guard else [])]
        elif op == "BRA":
            always = x.opcode == "BRA" and not x.guard and x.operands.startswith("`")
            found = [(t, calls) for t in self._targets(i)] + ([] if always else falls)
        elif op == "BRX":
            found = [(t, calls) for t in self._targets(i)] + (falls if x.guard else [])
        elif op == "BSYNC":
            meets = self.meets[x.operands.split(",")[0]]
            found = falls if i + 1 in meets else falls + [(t, calls) for t in sorted(meets)]
        elif op == "WARPSYNC" and "`" in x.operands:
            found = falls + [(t, calls) for t in self._targets(i)]
        elif op in ("JMP", "JMX", "JMXU", "BRXU", "RTT"):
            raise self._lost(i, "jumps to an address that is not in the text")
        else:
            found = falls
        if any(j >= len(self.code.code) for j, _ in found):
            raise self._lost(i, "runs off the end of the code")
        return found

    def _targets(self, i: int) -> list[int]:
        """Instructions behind the labels of a jump."""
        operands = self.code.code[i].operands
        names = re.findall(r"`\(([^)]*)\)", operands)
        for table in re.findall(r'BRANCH_TARGETS ([^"]*)"', operands):
            names += table.split(",")
        if not names or any(n not in self.code.labels for n in names):
            raise self._lost(i, "jumps to an address that is not in the text")
        return [self.code.labels[n] for n in names]

    def _call(self, i: int, calls: tuple[int, ...]) -> Place:
        """The callee; the caller has just put the address of the next instruction into a register."""
        x = self.code.code[i]
        back = re.compile(rf"(?<!\w)0x0*{x.address + 16:x}\b")
        if not any(back.search(y.operands) for y in self.code.code[max(0, i - 8) : i]):
            raise self._lost(i, "calls with an unknown return address")
        if len(calls) == MAX_CALLS:
            raise self._lost(i, f"calls deeper than {MAX_CALLS}")
        (to,) = self._targets(i)
        return to, (*calls, i + 1)

    def _lost(self, i: int, why: str) -> SassError:
        return SassError(f"{self.code.code[i]} {why}", f"{self.where} {self.code.name}".strip(), UNKNOWN)


# -- the analysis ------------------------------------------------------------------------------------------------------
def _entry(code: Code, where: str) -> Entry:
    """Forward dataflow from the kernel's first instruction over runs of straight code, to the fixed point."""
    flow = _Flow(code, where)
    bits = {i: 1 << n for n, i in enumerate(i for i, x in enumerate(code.code) if x.loads)}
    arrives: dict[int, int] = {i: 0 for i, x in enumerate(code.code) if x.arrives}
    starts: dict[Place, Pending] = {(0, ()): NOTHING}
    seen: set[int] = set()
    work: list[Place] = [(0, ())]
    heads = set(code.labels.values())
    while work:
        place = work.pop()
        pending = starts[place]
        while True:
            i, calls = place
            x = code.code[i]
            seen.add(i)
            if x.waits:
                pending = tuple(0 if x.waits >> b & 1 else p for b, p in enumerate(pending))
            if i in arrives:
                for p in pending:
                    arrives[i] |= p
            elif i in bits:
                pending = _issue(pending, x, bits[i])
            elif x.opcode.startswith("DEPBAR"):
                pending = _depbar(pending, x.operands)
            after = flow.after(place)
            if after != [(i + 1, calls)] or i + 1 in heads:
                break
            place = after[0]
        for to in after:
            old = starts.get(to)
            new = pending if old is None else tuple(a | b for a, b in zip(old, pending, strict=True))
            if new != old:
                starts[to] = new
                work.append(to)
    missed = [x for i, x in enumerate(code.code) if (i in bits or i in arrives) and i not in seen]
    if missed:
        raise SassError(f"no path reaches {missed[0]}", f"{where} {code.name}".strip(), UNKNOWN)
    loads = [(bit, code.code[i]) for i, bit in bits.items()]
    violations = tuple(
        Violation(code.code[i], tuple(x for bit, x in loads if bit & p)) for i, p in arrives.items() if p
    )
    return Entry(code.name, len(code.code), len(bits), len(arrives), violations)


def _issue(pending: Pending, x: Instruction, bit: int) -> Pending:
    """A load is issued; one in order takes those before it that have no scoreboard under its own."""
    new = list(pending)
    if x.scoreboard != NO_SCOREBOARD:
        new[x.scoreboard] |= bit
        if x.in_order:
            new[x.scoreboard] |= new[NOT_YET]
            new[NOT_YET] = 0
    else:
        new[NOT_YET if x.in_order else NEVER] |= bit
    return tuple(new)


def _depbar(pending: Pending, operands: str) -> Pending:
    """DEPBAR.LE SB0, 0x0, {1,2}: waits for SB0 down to a count, which says something only at 0, and for the rest."""
    zero = re.match(r"SB(\d), 0x0\b", operands)
    waits = {int(zero[1])} if zero else set()
    for listed in re.findall(r"\{([\d,\s]*)\}", operands):
        waits |= {int(b) for b in listed.split(",") if b.strip()}
    return tuple(0 if b in waits else p for b, p in enumerate(pending))

"""Audit of the Lean library: nothing that would make a certificate worth less than it says.

Two kinds of checks: of the sources (`scan`: forbidden words, axioms, definitions that the kernel replaces by name) and
of the compiled library (`inspect`: every module built, every listed theorem there and resting on allowed axioms).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from plow.verify.certificate import printed_axioms
from plow.verify.checkpoint import ALLOWED_AXIOMS
from plow.verify.library import Library, compile_library, modules, source_root
from plow.verify.registry import CHECKPOINTS

INTERFACE = frozenset({"Base.Core", "Base.Numbers", "Base.Data", "Base.Meta"})
"""Modules that repeat the interface of Lean's core library; only they may use FOUNDATION_WORDS."""
SYNTAX = frozenset({"Base.Notation", "Base.Tactics", "Base.Logic"})
"""Modules that declare syntax and macros."""
FOUNDATION_WORDS = ("axiom", "unsafe", "extern", "implemented_by", "opaque", "csimp", "init_quot")
SYNTAX_WORDS = ("macro", "macro_rules", "syntax", "elab", "elab_rules", "notation", "infix", "infixl", "infixr")
FORBIDDEN_WORDS = ("sorry", "admit", "native_decide", "partial", "run_cmd", "run_elab", "initialize", "#eval")
OPTIONS = frozenset({"autoImplicit", "linter.all", "maxRecDepth", "genCtorIdx", "checkBinderAnnotations",
                     "bootstrap.genMatcherCode", "bootstrap.inductiveCheckResultingUniverse"})
AXIOMS = ALLOWED_AXIOMS | {"sorryAx"}
"""Axioms that the foundation declares. sorryAx must exist by name; a proof that uses it is a finding of `inspect`."""
COMPILER_AXIOMS = frozenset({"lcErased", "lcAny", "lcVoid", "lcProof", "lcCast", "lcUnreachable", "Quot.lcInv"})
"""Marked unsafe: the kernel lets no proof use them."""
KERNEL_NAT = {"add": ("add_zero", "add_succ"), "sub": ("sub_zero", "sub_succ"), "mul": ("mul_zero", "mul_succ"),
              "div": ("div_mod", "div_zero"), "mod": ("div_mod", "mod_zero"), "pow": ("pow_zero", "pow_succ"),
              "beq": ("beq_iff",), "ble": ("ble_iff",), "shiftRight": ("shiftRight_zero", "shiftRight_succ"),
              "gcd": (), "log2": (), "land": (), "lor": (), "xor": (), "shiftLeft": (), "testBit": ()}
"""Functions of Nat that the kernel replaces by name, with the theorems of Base.NatSpec that determine ours; () = must
not be defined. A wrong definition proves False without any axiom."""
DEFINES_NAT, SPEC = "Base.Numbers", "Base.NatSpec"
LISTED = tuple(t for c in CHECKPOINTS.values() if c.build for t in (c.theorem, *c.also))
"""Theorems that certificates rest on."""


@dataclass(frozen=True)
class Finding:
    rule: str
    where: str
    text: str


def audit(library: Library | None = None, listed: Sequence[str] = LISTED) -> list[Finding]:
    """All findings about the library; [] is a pass. Raises VerifyError if it does not build."""
    library = library or compile_library()
    return [*scan(library.root), *inspect(library, listed)]


def scan(root: Path | None = None) -> list[Finding]:
    """Findings in the sources."""
    root = root or source_root()
    found: list[Finding] = []
    declared: dict[str, set[str]] = {}
    for module in modules(root):
        code = strip((root / (module.replace(".", "/") + ".lean")).read_text(encoding="utf-8"))
        found += _words(module, code)
        declared[module] = {name for kind, name, _ in declarations(code)}
        found += _declarations(module, code)
    return found + _nat_spec(declared)


IN_COMMENT = re.compile(r"/-|-/")
IN_CODE = re.compile(r'/-|--[^\n]*|"(?:\\.|[^"\\])*"', re.S)


@functools.lru_cache(maxsize=64)
def strip(text: str) -> str:
    """Lean source with comments and string literals blanked; lines keep their numbers."""
    out, depth, at = [], 0, 0
    while m := (IN_COMMENT if depth else IN_CODE).search(text, at):
        out.append(_lines(text[at:m.start()]) if depth else text[at:m.start()])
        token, at = m.group(), m.end()
        if token == "/-":
            depth += 1
        elif token == "-/":
            depth -= 1
        elif token.startswith('"'):
            out.append('""' + _lines(token))
    return "".join(out) + (_lines(text[at:]) if depth else text[at:])


def _lines(text: str) -> str:
    return "\n" * text.count("\n")


SPACE = re.compile(r"^\s*(namespace|section|end)\b[ \t]*(\S*)")
KEYWORDS = "def|abbrev|theorem|axiom|opaque|inductive|structure|class|instance"
DECLARATION = re.compile(rf"(?<![\w.])({KEYWORDS})\s+([^\s:({{\[]+)")


def declarations(code: str) -> Iterator[tuple[str, str, int]]:
    """(keyword, full name, line) of the declarations of stripped source, namespaces applied."""
    spaces: list[str] = []
    for number, line in enumerate(code.splitlines(), 1):
        if m := SPACE.match(line):
            keyword, name = m.groups()
            if keyword != "end":
                spaces.append(name if keyword == "namespace" else "")
            elif spaces:
                spaces.pop()
            continue
        for m in DECLARATION.finditer(line):
            keyword, name = m.groups()
            rooted = name.startswith("_root_.")
            full = name.removeprefix("_root_.") if rooted else ".".join([*filter(None, spaces), name])
            yield keyword, full.split(".{")[0].replace("«", "").replace("»", ""), number


def _words(module: str, code: str) -> list[Finding]:
    banned = list(FORBIDDEN_WORDS)
    if module not in INTERFACE:
        banned += FOUNDATION_WORDS
    if module not in INTERFACE | SYNTAX:
        banned += SYNTAX_WORDS
    found = []
    for number, line in enumerate(code.splitlines(), 1):
        where = f"{module}:{number}"
        words = set(re.findall(r"(?<![\w.'])#?\w+(?![\w'])", line))
        found += [Finding("forbidden word", where, w) for w in banned if w in words]
        options = re.findall(r"set_option (\S+)", line)
        found += [Finding("forbidden option", where, o) for o in options if o not in OPTIONS]
    return found


def _declarations(module: str, code: str) -> list[Finding]:
    found = []
    for keyword, name, number in declarations(code):
        where = f"{module}:{number}"
        if keyword == "axiom":
            unsafe = re.match(r"\s*unsafe\b", code.splitlines()[number - 1]) is not None
            if name not in (COMPILER_AXIOMS if unsafe else AXIOMS):
                found.append(Finding("extra axiom", where, name))
        elif name.startswith("Nat.") and name[4:] in KERNEL_NAT and module != DEFINES_NAT:
            found.append(Finding("kernel function redefined", where, name))
    return found


def _nat_spec(declared: dict[str, set[str]]) -> list[Finding]:
    found = []
    for short, theorems in KERNEL_NAT.items():
        if f"Nat.{short}" in declared.get(DEFINES_NAT, set()):
            absent = [t for t in theorems if f"Nat.Spec.{t}" not in declared.get(SPEC, set())]
            if absent or not theorems:
                text = f"Nat.{short} lacks {', '.join(absent) or 'equations'}"
                found.append(Finding("kernel function without equations", DEFINES_NAT, text))
    return found


def inspect(library: Library, listed: Sequence[str] = LISTED) -> list[Finding]:
    """Findings in the compiled library."""
    absent = [name for name in modules(library.root) if not library.olean(name).is_file()]
    found = [Finding("module not built", name, "no .olean") for name in absent]
    if found:
        return found
    names = "".join(f"import {m}\n" for m in library.names)
    run = library.run(f"prelude\n{names}" + "".join(f"#print axioms {t}\n" for t in listed), timeout=60)
    texts = [m.text for m in run.messages]
    for theorem in listed:
        axioms = printed_axioms(texts, theorem)
        if axioms is None:
            found.append(Finding("listed theorem missing", theorem, run.summary()))
        elif extra := sorted(set(axioms) - ALLOWED_AXIOMS):
            found.append(Finding("forbidden axiom used", theorem, ", ".join(extra)))
    missing = set(LISTED) - set(listed)
    return found + [Finding("fewer checks than listed", theorem, "not inspected") for theorem in sorted(missing)]

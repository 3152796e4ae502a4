"""The pattern language of rules: s-expressions over the op table, lowered to egglog text.

    (linear (rms_norm x norm_weight eps=e) weight)

Operands are positional, trailing optional ones that are left out are absent (`-` says so explicitly). Attributes are
named. On the left an attribute that is not written binds the variable of its own name, so that two operators of one
pattern must agree on it unless it is renamed (`eps=qk_eps`) or ignored (`scale=_`). On the right an attribute that is
not written takes the variable of its own name where the left binds one, else the table's default.
`(out (qkv ...) 1)` is the second result of an operator.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Set
from dataclasses import dataclass

from plow.errors import GraphError
from plow.graph import OPS
from plow.rewrite import schema

TOKEN = re.compile(r"\(|\)|[^\s()]+")
IDENTIFIER = re.compile(r"[a-z_][a-z0-9_]*\Z")
LITERALS = frozenset({"true", "false"})


@dataclass(frozen=True)
class Var:
    """A value; matches any term."""

    name: str


@dataclass(frozen=True)
class Absent:
    """An optional operand that is not given."""


@dataclass(frozen=True)
class App:
    """An operator application. attrs: in table order, each a variable name or an egglog literal."""

    op: str
    args: tuple[Pattern, ...]
    attrs: tuple[str, ...]


@dataclass(frozen=True)
class Out:
    """Result `index` of an application."""

    of: App
    index: int


Pattern = Var | Absent | App | Out


def is_variable(text: str) -> bool:
    return IDENTIFIER.match(text) is not None and text not in LITERALS


def parse(text: str, bound: Set[str] | None = None, tag: str = "") -> Pattern:
    """bound: variables that the left side binds when `text` is a right side; None when it is a left side.
    tag: keeps the ignored attributes of several patterns of one rule apart.

    Raises GraphError for an unknown op or attribute, a wrong number of operands, or an unbound variable on the right.
    """
    tokens = TOKEN.findall(text)
    pattern, rest = _Parser(text, bound, tag).expression(tokens)
    if rest:
        raise GraphError(f"pattern has text after its end: {' '.join(rest)}", text)
    return pattern


class _Parser:
    def __init__(self, text: str, bound: Set[str] | None, tag: str) -> None:
        self.text, self.bound, self.tag = text, bound, tag
        self.wildcards = 0

    def expression(self, tokens: list[str]) -> tuple[Pattern, list[str]]:
        if not tokens or tokens[0] == ")":
            raise GraphError("pattern ends too early", self.text)
        head, rest = tokens[0], tokens[1:]
        if head != "(":
            return self.leaf(head), rest
        op, rest = rest[0], rest[1:]
        args: list[Pattern] = []
        attrs: dict[str, str] = {}
        while rest and rest[0] != ")":
            if "=" in rest[0]:
                key, value = rest[0].split("=", 1)
                attrs[key], rest = value, rest[1:]
            else:
                arg, rest = self.expression(rest)
                args.append(arg)
        if not rest:
            raise GraphError("pattern misses a closing parenthesis", self.text)
        return self.application(op, args, attrs), rest[1:]

    def leaf(self, name: str) -> Pattern:
        if name == "-":
            return Absent()
        if self.bound is not None and is_variable(name) and name not in self.bound:
            raise GraphError(f"right side uses the unbound variable {name!r}", self.text)
        return Var(name)

    def application(self, op: str, args: list[Pattern], attrs: dict[str, str]) -> Pattern:
        if op == "out":
            tuple_of, index = args
            if not isinstance(tuple_of, App) or not isinstance(index, Var):
                raise GraphError("out takes an application and an index", self.text)
            return Out(tuple_of, int(index.name))
        if op not in OPS:
            raise GraphError(f"unknown op {op!r} in a pattern", self.text, f"known: {', '.join(sorted(OPS))}")
        spec = OPS[op]
        if unknown := sorted(attrs.keys() - spec.attrs.keys()):
            raise GraphError(f"{op} has no attribute {unknown[0]!r}", self.text)
        for name in spec.inputs[len(args):]:
            if not name.endswith("?"):
                raise GraphError(f"{op}: operand {name!r} is missing", self.text)
        if len(args) > len(spec.inputs):
            raise GraphError(f"{op} takes {len(spec.inputs)} operands, pattern gives {len(args)}", self.text)
        args += [Absent()] * (len(spec.inputs) - len(args))
        return App(op, tuple(args), tuple(self.attribute(op, name, attrs.get(name)) for name in spec.attrs))

    def attribute(self, op: str, name: str, written: str | None) -> str:
        if self.bound is None:
            if written == "_":
                self.wildcards += 1
                return f"_{self.tag}_{name}_{self.wildcards}"
            return written or name
        if written is not None:
            if is_variable(written) and written not in self.bound:
                raise GraphError(f"right side uses the unbound variable {written!r}", self.text)
            return written
        if name in self.bound:
            return name
        attr = OPS[op].attrs[name]
        if attr.default is None:
            raise GraphError(f"right side leaves {op}.{name} open", self.text, "bind it on the left or write a literal")
        return schema.encode(attr.type, attr.default)


def to_egglog(p: Pattern) -> str:
    if isinstance(p, Var):
        return p.name
    if isinstance(p, Absent):
        return f"({schema.ABSENT_TERM})"
    if isinstance(p, Out):
        return f"({schema.OUT} {to_egglog(p.of)} {p.index})"
    return f"({' '.join([schema.constructor(p.op), *map(to_egglog, p.args), *p.attrs])})"


def applications(p: Pattern) -> Iterator[App]:
    """All operator applications, inner ones first."""
    if isinstance(p, Out):
        yield from applications(p.of)
    elif isinstance(p, App):
        for a in p.args:
            yield from applications(a)
        yield p


def variables(p: Pattern) -> Iterator[tuple[str, str]]:
    """(name, sort) of every variable, in order of appearance, with repetitions."""
    if isinstance(p, Var):
        yield p.name, "Term"
    elif isinstance(p, Out):
        yield from variables(p.of)
    elif isinstance(p, App):
        for a in p.args:
            yield from variables(a)
        for text, attr in zip(p.attrs, OPS[p.op].attrs.values(), strict=True):
            if is_variable(text):
                yield text, schema.sort_of(attr)

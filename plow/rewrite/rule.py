"""`Rule`: a named rewrite as data, and its lowering to egglog text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from plow.errors import GraphError
from plow.graph import OPS
from plow.rewrite import schema
from plow.rewrite.pattern import Pattern, is_variable, parse, to_egglog, variables

Kind = Literal["exact", "reassociation"]


@dataclass(frozen=True)
class Variant:
    """One way to match. lhs: root variable -> pattern; where: egglog conditions over the variables; rhs: root variable
    -> the term it is made equal to. Every root of `rhs` is a root or a variable of `lhs`."""

    lhs: Mapping[str, str]
    rhs: Mapping[str, str]
    where: tuple[str, ...] = ()

    @cached_property
    def left(self) -> dict[str, Pattern]:
        return {root: parse(text, tag=root) for root, text in self.lhs.items()}

    @cached_property
    def bound(self) -> dict[str, str]:
        """Variable -> sort, in order of appearance. A variable that only a condition `(= name expression)` binds is an
        attribute of the right side and takes its sort from there."""
        sorts: dict[str, str] = {}
        for root, pattern in self.left.items():
            sorts[root] = "Term"
            if root in dict(variables(pattern)):
                raise GraphError(f"variable {root!r} stands inside the pattern of its own root", self.lhs[root])
            for name, sort in variables(pattern):
                if sorts.setdefault(name, sort) != sort:
                    raise GraphError(f"variable {name!r} is {sorts[name]} and {sort}", self.lhs[root])
        names = {w.split()[1] for w in self.where if w.startswith("(= ")}
        computed = {name for name in names if is_variable(name)} - sorts.keys()
        for root, text in self.rhs.items():
            found = dict(variables(parse(text, sorts.keys() | computed)))
            if root not in sorts:
                raise GraphError(f"right side defines {root!r}, which the left does not bind", text)
            sorts |= {name: found[name] for name in sorted(computed) if name in found}
        return sorts

    @cached_property
    def right(self) -> dict[str, Pattern]:
        return {root: parse(text, self.bound.keys()) for root, text in self.rhs.items()}


def fuse(lhs: str, rhs: str, *where: str) -> Variant:
    """The common case: one root."""
    return Variant({"y": lhs}, {"y": rhs}, where)


@dataclass(frozen=True)
class Rule:
    """kind: "exact" (the same arithmetic in the same order) or "reassociation" (equal over the reals, rounds
    differently). op: what the right side introduces. node: how the emitted node is called: a base op, whose node
    lends its name, or a fixed name. A variant is tried wherever its pattern and conditions hold; all fire as `name`."""

    name: str
    doc: str
    kind: Kind
    op: str
    node: str
    variants: tuple[Variant, ...] = field(repr=False)

    @property
    def lhs(self) -> str:
        return "\n".join("; ".join(f"{r} = {t}" for r, t in v.lhs.items()) for v in self.variants)

    @property
    def rhs(self) -> str:
        return "\n".join("; ".join(f"{r} = {t}" for r, t in v.rhs.items()) for v in self.variants)

    def relation(self, index: int) -> str:
        return f"fired_{self.name}_{index}"

    def egglog(self) -> str:
        """A relation that records every match with its substitution, and the rule, for each variant."""
        return "\n".join(self._variant_text(i, v) for i, v in enumerate(self.variants))

    def _variant_text(self, index: int, v: Variant) -> str:
        facts = [f"(= {root} {to_egglog(p)})" for root, p in v.left.items()] + list(v.where)
        names = list(v.bound)
        actions = [f"(union {root} {to_egglog(p)})" for root, p in v.right.items()]
        actions.append(f"({' '.join([self.relation(index), *names])})")
        gap = "\n       "
        return (f"(relation {self.relation(index)} ({' '.join(v.bound.values())}))\n"
                f"(rule ({gap.join(facts)})\n      ({gap.join(actions)})\n"
                f'      :ruleset {schema.RULESET} :name "{self.name}.{index}")')


def check_rule(rule: Rule) -> Rule:
    """Parse all sides now, so that a bad rule is an error of its author and not of a run."""
    if rule.op not in OPS:
        raise GraphError(f"rule {rule.name!r} introduces the unknown op {rule.op!r}")
    if not rule.variants:
        raise GraphError(f"rule {rule.name!r} has no variant")
    rule.egglog()
    return rule

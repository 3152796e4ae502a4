"""The egglog schema, generated from the op table: one constructor an operator over the sort `Term`.

    (Linear x weight bias)             operands in the op's order, an optional one that is not given is (Absent)
    (RmsNorm x weight eps zero)        then the attributes in the op's order as typed literals
    (Out (Qkv ...) 1)                  result 1 of an operator with several results
    (Value "w0")                       a leaf: block input, weight or graph input

Facts that a rule's conditions may read: (width v) = last dimension, (rows v) = first dimension of a weight matrix,
(dtype v). They are `:no-merge`: a rule that equates values of different widths stops the run with an error.
"""

from __future__ import annotations

import json
import math
from collections.abc import Hashable, Mapping
from typing import Any

from plow.errors import GraphError
from plow.graph import OPS, OpSpec
from plow.graph.ops import Attr

RULESET = "fuse"
VALUE, ABSENT_TERM, OUT = "Value", "Absent", "Out"
FACTS = {"width": "i64", "rows": "i64", "dtype": "String"}
SORTS = {float: "f64", int: "i64", bool: "bool", str: "String", dict: "String"}


def constructor(op: str) -> str:
    """Name of the op's constructor: "rms_norm" -> "RmsNorm"."""
    return "".join(part.capitalize() for part in op.split("_"))


OP_OF_CONSTRUCTOR = {constructor(op): op for op in OPS}


def sort_of(attr: Attr) -> str:
    return SORTS[attr.type]


def encode(attr_type: type, value: Any) -> str:
    """Attribute value -> egglog literal. A dict becomes its canonical JSON text. Raises GraphError for inf and nan."""
    if attr_type is float:
        if not math.isfinite(value):
            raise GraphError(f"attribute value {value!r} is not finite", "", "rewrites need finite attributes")
        return repr(float(value))
    if attr_type is bool:
        return "true" if value else "false"
    if attr_type is int:
        return str(int(value))
    return quote(value if attr_type is str else json.dumps(value, sort_keys=True))


def quote(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def decode(sort: str, literal: str) -> Hashable:
    """egglog literal (its serialised form) -> hashable Python value; a dict stays JSON text."""
    if sort == "f64":
        return float(literal)
    if sort == "i64":
        return int(literal)
    if sort == "bool":
        return literal == "true"
    return literal[1:-1].replace('\\"', '"').replace("\\\\", "\\")


def attr_key(spec: OpSpec, attrs: Mapping[str, Any]) -> tuple[Hashable, ...]:
    """A node's attributes in table order as hashable values, defaults filled in: what `decode` gives for its term."""
    return tuple(decode(sort_of(a), encode(a.type, attrs.get(name, a.default))) for name, a in spec.attrs.items())


def attrs_from_key(spec: OpSpec, key: tuple[Hashable, ...]) -> dict[str, Any]:
    """Inverse of `attr_key`."""
    return {name: json.loads(str(value)) if attr.type is dict else value
            for (name, attr), value in zip(spec.attrs.items(), key, strict=True)}


def term(op: str, inputs: list[str], attrs: Mapping[str, Any]) -> str:
    """egglog text of one application; inputs are egglog expressions in the op's order."""
    literals = [encode(a.type, attrs.get(name, a.default)) for name, a in OPS[op].attrs.items()]
    return f"({' '.join([constructor(op), *inputs, *literals])})"


def schema_text() -> str:
    """Sort, constructors, facts and the ruleset; the same for every block."""
    lines = [
        "(sort Term)",
        f"(constructor {VALUE} (String) Term)",
        f"(constructor {ABSENT_TERM} () Term)",
        f"(constructor {OUT} (Term i64) Term)",
    ]
    for spec in OPS.values():
        sorts = ["Term"] * len(spec.inputs) + [sort_of(a) for a in spec.attrs.values()]
        lines.append(f"(constructor {constructor(spec.name)} ({' '.join(sorts)}) Term) ; {spec.doc}")
    lines += [f"(function {name} (Term) {sort} :no-merge)" for name, sort in FACTS.items()]
    lines += ["(relation named (String Term))", f"(ruleset {RULESET})"]
    return "\n".join(lines)

"""Checks against the oracle: attributes, operator by operator, logits, greedy tokens, and the power of all of these."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from plow.graph.reference import run
from plow.graph.semantics import Caches
from plow.oracle.client import Greedy
from plow.oracle.metrics import max_abs_error, max_rel_error
from stages.base import Check
from stages.s1_ir import power
from stages.s1_ir.subject import DOT, DOT_OPS, POINTWISE, Oracle, Subject
from stages.subject import encode_prompts, random_tokens, step_inputs
from stages.substeps import SubStep, attributes, compare, first_above, not_compared, worst

LENGTHS = (1, 7, 33, 130)
BEYOND = 17
"""Positions beyond the widest window, so that windowed layers forget."""
LONGEST = 2048
"""A window above this takes the numpy reference too long; its attribute is compared all the same."""
OPERATOR_ROWS = 33
SAMPLED = 4
GREEDY_TOKENS = 16


def stated(s: Subject, oracle: Oracle) -> list[Check]:
    found = attributes(s.graph, oracle.attributes())
    wrong = [a for a in found if not a.equal]
    layers = Counter(a.node.rpartition(".")[0] for a in found if a.node.startswith("layer."))
    fewest = min((layers.get(f"layer.{i}", 0) for i in range(s.graph.meta["num_layers"])), default=0)
    return [
        s.check("attributes_differing", len(wrong), "; ".join(map(str, wrong[:3])) or f"{len(found)} compared"),
        s.check("attributes_compared_per_layer", fewest),
    ]


def operators(s: Subject, oracle: Oracle) -> list[Check]:
    tokens = random_tokens(s.rng, s.checkpoint, OPERATOR_ROWS)
    steps = compare(s.graph, s.weights, step_inputs(tokens), oracle.capture(tokens))
    left = not_compared(s.graph, steps)
    checks = [
        s.check("operators_not_compared", len(left), ", ".join(n.name for n in left[:5]) or f"{len(steps)} compared")
    ]
    for name, group in (
        (POINTWISE, [x for x in steps if x.node.op not in DOT_OPS]),
        (DOT, [x for x in steps if x.node.op in DOT_OPS]),
    ):
        checks.append(_operator_check(s, name, group))
    return checks


def _operator_check(s: Subject, name: str, group: list[SubStep]) -> Check:
    most, first = worst(group), first_above(group, s.limit(name))
    if most is None:
        return s.check(name, None, "nothing was compared")
    detail = f"first operator that departs: {first}" if first else f"largest of {len(group)}: {most}"
    return s.check(name, most.error, detail)


def lengths_of(s: Subject) -> list[int]:
    """Prompt lengths within the trained context; one goes beyond the widest window where that is in reach."""
    longest = min(s.graph.meta["max_position_embeddings"], LONGEST)
    beyond = [s.window + BEYOND] if s.window else []
    return sorted({n for n in (*LENGTHS, *beyond) if n <= longest})


def logits(s: Subject, oracle: Oracle) -> list[Check]:
    errors: dict[int, float] = {}
    theirs_off = ours_off = float(np.finfo(np.float32).tiny)
    for length in lengths_of(s):
        tokens = random_tokens(s.rng, s.checkpoint, length)
        rows = sorted({*range(max(0, length - SAMPLED), length), length // 2})
        theirs = oracle.logits(tokens, rows)
        ours = _logits(s, tokens, rows, np.float32)
        errors[length] = max_rel_error(theirs, ours)
        if length <= OPERATOR_ROWS:
            exact = _logits(s, tokens, rows, np.float64)
            theirs_off = max(theirs_off, max_abs_error(exact, theirs))
            ours_off = max(ours_off, max_abs_error(exact, ours))
    most = max(errors, key=lambda n: errors[n])
    noise = f"off float64 by {theirs_off:.1e}, this reference by {ours_off:.1e}"
    return [
        s.check("logits_rel_error", errors[most], ", ".join(f"{n} tokens {e:.1e}" for n, e in errors.items())),
        s.check("logits_error_over_noise", theirs_off / ours_off, noise),
    ]


def _logits(s: Subject, tokens: list[int], rows: list[int], dtype: type) -> np.ndarray:
    return run(s.graph, s.weights, step_inputs(tokens, rows=rows), Caches(), dtype)["logits"]


@dataclass(frozen=True)
class Agreement:
    """Of greedy tokens. judged: compared; wrong: where a text departs; ties: texts that ended at a tie; texts: all."""

    judged: int = 0
    wrong: tuple[str, ...] = ()
    ties: int = 0
    texts: int = 0

    def __add__(self, other: Agreement) -> Agreement:
        return Agreement(
            self.judged + other.judged, self.wrong + other.wrong, self.ties + other.ties, self.texts + other.texts
        )

    def checks(self, s: Subject, source: str = "") -> list[Check]:
        detail = "; ".join(self.wrong[:3]) or f"{self.judged} tokens of {self.texts} texts, {self.ties} ended by a tie"
        return [
            s.check("greedy_disagreements", len(self.wrong), source + detail),
            s.check("greedy_tokens_judged", self.judged),
        ]


def greedy(s: Subject, oracle: Oracle) -> list[Check]:
    total = Agreement()
    for prompt in encode_prompts(s.checkpoint, s.rng):
        total += agree(s, prompt, oracle.greedy(prompt, GREEDY_TOKENS))
    return total.checks(s)


def agree(s: Subject, prompt: list[int], theirs: Greedy) -> Agreement:
    """Token by token through the reference's cache. Where the oracle's two best tokens are closer than the two
    implementations' rounding, either may come first and the texts may part: the text is judged up to there."""
    ours, scale = _greedy(s, prompt, theirs.tokens)
    for i, (a, b) in enumerate(zip(ours, theirs.tokens, strict=True)):
        if a != b and theirs.margins[i] <= 2 * s.limit("logits_rel_error") * scale:
            return Agreement(i, (), 1, 1)
        if a != b:
            return Agreement(i + 1, (f"prompt of {len(prompt)} tokens, token {i}: {a} instead of {b}",), 0, 1)
    return Agreement(len(ours), (), 0, 1)


def _greedy(s: Subject, prompt: list[int], follow: list[int]) -> tuple[list[int], float]:
    """(our choice after the prompt and after each token of `follow` but the last, largest |logit| seen)."""
    caches, chosen, scale = Caches(), [], 0.0
    step = step_inputs(prompt, rows=[len(prompt) - 1])
    for i in range(len(follow)):
        row = run(s.graph, s.weights, step, caches)["logits"][0]
        chosen.append(int(row.argmax()))
        scale = max(scale, float(np.abs(row).max()))
        step = step_inputs([follow[i]], len(prompt) + i)
    return chosen, scale


def powers(s: Subject, oracle: Oracle) -> list[Check]:
    short, weights, layers = power.truncated(s.checkpoint.config, s.build(s.checkpoint.config), s.stored)
    modules = _renamed(oracle.attributes(), layers)
    longest = min(LONGEST, s.graph.meta["max_position_embeddings"])
    tokens = random_tokens(s.rng, s.checkpoint, min(longest, max(OPERATOR_ROWS, s.window + BEYOND)))
    seen = power.measure(short, weights, tokens, modules, set(short.weights))
    least, name = power.power_of_logits(seen, s.limit("logits_rel_error"))
    lost = power.unnamed(seen, s.operator_limits(), short)
    return [
        s.check("power_logits_min", least, f"weakest of {len(seen)} wrong attributes in layers {layers}: {name}"),
        s.check(
            "power_unnamed",
            len(lost),
            "; ".join(map(str, lost[:3])) or f"{len(seen)} wrong attributes, each would be named",
        ),
    ]


def _renamed(modules: dict[str, dict[str, object]], layers: list[int]) -> dict[str, dict[str, object]]:
    """The oracle's modules under the truncated model's layer numbers."""
    out = {}
    for name, held in modules.items():
        parts = name.split(".")
        number = next((i for i, p in enumerate(parts) if p.isdigit()), None)
        if number is None:
            out[name] = held
        elif int(parts[number]) in layers:
            parts[number] = str(layers.index(int(parts[number])))
            out[".".join(parts)] = held
    return out

"""Known-bad subjects for the gate of stage 1: tiny models whose oracle is the reference run of the right graph."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
from safetensors.numpy import load_file, save_file

from plow.checkpoint import Checkpoint
from plow.graph import Graph
from plow.graph.reference import run
from plow.graph.semantics import Caches
from plow.models import build
from plow.oracle import tiny
from plow.oracle.client import Greedy
from plow.oracle.difference import capture_keys
from plow.oracle.metrics import margins
from plow.oracle.perturb import perturbations
from stages.base import GateReport, Planted, StageContext
from stages.s1_ir.gate import judge
from stages.s1_ir.subject import Subject
from stages.subject import Widened, step_inputs
from stages.substeps import attention_module, module_of

Config = dict[str, Any]


class ReferenceOracle:
    """Answers as transformers would, from the right graph of a tiny checkpoint."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.graph = build(checkpoint.config)
        self.weights = Widened({n: checkpoint.tensor(n) for n in self.graph.weights})

    def logits(self, tokens: list[int], rows: list[int] | None = None) -> np.ndarray:
        return run(self.graph, self.weights, step_inputs(tokens, rows=rows), Caches())["logits"]

    def greedy(self, tokens: list[int], count: int) -> Greedy:
        caches, new, gaps = Caches(), [], []
        step = step_inputs(tokens, rows=[len(tokens) - 1])
        for i in range(count):
            row = run(self.graph, self.weights, step, caches)["logits"]
            new.append(int(row[0].argmax()))
            gaps.append(float(margins(row)[0]))
            step = step_inputs([new[-1]], len(tokens) + i)
        return Greedy(new, gaps)

    def capture(self, tokens: list[int], layers: list[int] | None = None) -> dict[str, np.ndarray]:
        values: dict[str, Any] = {}
        run(self.graph, self.weights, step_inputs(tokens), Caches(), observe=values.__setitem__)
        return {key: values[v] for v, keys in capture_keys(self.graph).items() for key in keys if v in values}

    def attributes(self) -> dict[str, dict[str, Any]]:
        held: dict[str, dict[str, Any]] = {}
        for n in self.graph.nodes:
            if n.op == "rms_norm":
                held[module_of(n, self.graph)] = {"eps": n.attrs["eps"]}
            elif n.op == "attention":
                held[attention_module(n, self.graph)] = {
                    "scaling": n.attrs["scale"],
                    "head_dim": n.attrs["head_dim"],
                    "sliding_window": n.attrs["window"],
                    "num_key_value_groups": n.attrs["num_heads"] // n.attrs["num_kv_heads"],
                }
        return held


class BrokenOracle(ReferenceOracle):
    """Answers with NaN, as a process out of memory or a faulty device may."""

    def logits(self, tokens: list[int], rows: list[int] | None = None) -> np.ndarray:
        return np.full_like(super().logits(tokens, rows), np.nan)


def report(
    ctx: StageContext,
    config: Config,
    spoil: Callable[[Subject], None] = lambda s: None,
    oracle: type[ReferenceOracle] = ReferenceOracle,
) -> GateReport:
    """The gate's own code on a tiny checkpoint; `spoil` changes the subject, not the oracle."""
    path = tiny.write(ctx.workdir / "tiny", config, seed=7)
    subject = Subject.open(StageContext(**{**ctx.__dict__, "checkpoint": path}))
    answers = oracle(subject.checkpoint)
    spoil(subject)
    return judge(subject, lambda: answers)


def wrong_attribute(attribute: str, node: str = "") -> Callable[[Subject], None]:
    """The first operator that has the attribute, or the first whose name ends with `node`, gets another value."""

    def spoil(s: Subject) -> None:
        s.graph = next(p.graph for p in perturbations(s.graph) if p.attribute == attribute and p.node.endswith(node))

    return spoil


def lenient_build(s: Subject) -> None:
    """A family that fills in what the config does not say."""

    def lenient(config: Config) -> Graph:
        return build({"rms_norm_eps": 1e-6, "max_position_embeddings": 2048, **config})

    s.build = lenient


def extra_tensor(s: Subject) -> None:
    file = s.checkpoint.path / "model.safetensors"
    tensors = load_file(file) | {"model.layers.0.self_attn.q_norm.weight": np.ones(32, ml_dtypes.bfloat16)}
    save_file(tensors, file, metadata={"format": "pt"})
    s.checkpoint = Checkpoint.open(s.checkpoint.path)


def other_head(s: Subject) -> None:
    """config.json says tied where the checkpoint has a head of its own."""
    config = s.checkpoint.config | {"tie_word_embeddings": True}
    (s.checkpoint.path / "config.json").write_text(json.dumps(config))
    s.checkpoint = Checkpoint.open(s.checkpoint.path)
    s.graph = build(config)


def transposed_heads(s: Subject) -> None:
    """k and v change places: every shape fits, nothing else does."""
    for i, n in enumerate(s.graph.nodes):
        if n.op == "kv_append":
            k, v, *rest = n.inputs
            s.graph.nodes[i] = n.__class__(n.name, n.op, (v, k, *rest), n.outputs, n.attrs, n.scope)
            return


def _planted(
    name: str,
    config: Config,
    expect: str,
    spoil: Callable[[Subject], None] = lambda s: None,
    oracle: type[ReferenceOracle] = ReferenceOracle,
) -> Planted:
    return Planted(name, lambda ctx: report(ctx, config, spoil, oracle), lambda ctx: report(ctx, config), expect)


PLANTED = (
    _planted("rms_norm eps ten times too large", tiny.LLAMA, "attributes_differing", wrong_attribute("eps")),
    _planted("RoPE theta doubled", tiny.LLAMA, "operator_error_pointwise", wrong_attribute("theta")),
    _planted(
        "attention scale off by a quarter", tiny.LLAMA, "operator_error_dot", wrong_attribute("scale", "attention")
    ),
    _planted("sliding window one position short", tiny.GEMMA3, "operator_error_dot", wrong_attribute("window")),
    _planted("the other activation", tiny.GEMMA3, "operator_error_pointwise", wrong_attribute("act")),
    _planted("norm weights not zero-centred", tiny.GEMMA3, "logits_rel_error", wrong_attribute("zero_centered")),
    _planted("keys and values exchanged", tiny.LLAMA, "logits_rel_error", transposed_heads),
    _planted("tie flag flipped", tiny.LLAMA, "weights_mismatched", other_head),
    _planted("a tensor that nobody uses", tiny.LLAMA, "weights_mismatched", extra_tensor),
    _planted("a family that fills in missing fields", tiny.LLAMA, "fields_missing_silent", lenient_build),
    _planted("an oracle that answers NaN", tiny.LLAMA, "logits_rel_error", oracle=BrokenOracle),
)

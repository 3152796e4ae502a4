"""The extraction against exhaustive search."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest

from plow.errors import GraphError
from plow.rewrite.block import Block, blocks_of
from plow.rewrite.egraph import EGraph, ENode, Limits, saturate
from plow.rewrite.extract import FEMTO, extract
from plow.rewrite.rules import RULES
from plow.rewrite.samples import POST_NORM, PRE_NORM, Shape, decoder


def layer(shape: Shape) -> tuple[EGraph, Block]:
    block = next(b for b, i in blocks_of(decoder(shape)) if i.scope == "layer.0")
    return saturate(block, RULES, Limits()), block


def selections(egraph: EGraph, needed: list[int], chosen: dict[int, ENode]) -> Iterator[dict[int, ENode]]:
    """Every selection of one e-node for each class that is reached from the roots."""
    left = [c for c in needed if c not in chosen]
    if not left:
        yield chosen
        return
    for n in egraph.classes[left[0]]:
        yield from selections(egraph, left[1:] + list(n.args), chosen | {left[0]: n})


def cheapest(egraph: EGraph, block: Block, price: Callable[[ENode], int]) -> int:
    roots = sorted({egraph.class_of[r] for r in block.roots})
    costs = []
    for s in selections(egraph, roots, {}):
        appends = [n for n in s.values() if n.op in ("kv_append", "qkv")]
        if len(appends) == 1:
            costs.append(sum(price(n) for n in s.values()))
    return min(costs)


@pytest.mark.parametrize("shape", [PRE_NORM, POST_NORM], ids=["pre-norm", "post-norm"])
@pytest.mark.parametrize("seed", range(3))
def test_extraction_is_the_cheapest_selection_under_any_price(shape: Shape, seed: int) -> None:
    egraph, block = layer(shape)
    rng = random.Random(seed)
    prices = {n: rng.randrange(1000) for n in egraph.class_of_node}
    found = extract(egraph, block, prices.__getitem__, 20_000)
    assert found.exact and round(found.seconds * FEMTO) == cheapest(egraph, block, prices.__getitem__)


def test_a_shared_operator_is_paid_once() -> None:
    """A tree cost would count the norm three times (q, k, v) and prefer the fused form."""
    egraph, block = layer(PRE_NORM)
    price = {n: int(n.op not in ("value", "absent", "out")) for n in egraph.class_of_node}
    price |= {n: 10 for n in price if n.op == "rms_norm"} | {n: 15 for n in price if n.op == "norm_linear"}
    price |= {n: 100 for n in price if n.op == "qkv"}
    chosen = [n.op for n in extract(egraph, block, price.__getitem__, 20_000).choice.values()]
    assert chosen.count("rms_norm") == 1 and "norm_linear" not in chosen


def test_a_cache_is_never_appended_to_twice() -> None:
    """Free grouped projection for q, free kv_append for the cache: together they would write the cache twice."""
    egraph, block = layer(PRE_NORM)
    kv = egraph.class_of_node[next(n for n in egraph.class_of_node if n.op == "kv_append")]
    price = {n: 0 if n.op in ("value", "absent", "qkv") else 1 for n in egraph.class_of_node}
    price |= {n: 1000 for n in price if n.op == "out" and n in egraph.classes[kv]}
    chosen = [n.op for n in extract(egraph, block, price.__getitem__, 20_000).choice.values()]
    assert sum(op in ("qkv", "kv_append") for op in chosen) == 1


def test_an_e_graph_without_a_selection_is_a_typed_error() -> None:
    egraph, block = layer(PRE_NORM)
    root = egraph.class_of[block.roots[-1]]
    egraph.classes[root] = []
    with pytest.raises(GraphError, match="no selection"):
        extract(egraph, block, lambda n: 1, 20_000)


def test_class_numbers_follow_the_program() -> None:
    egraph, block = layer(PRE_NORM)
    assert [egraph.class_of[v] for v in block.values()] == list(range(len(block.values())))

"""What `rewrite` returns: the graph, what fired, what was chosen, and why."""

from __future__ import annotations

from dataclasses import dataclass, field

from plow.graph import Graph


@dataclass(frozen=True)
class Fusion:
    """A node that rules introduced. rules: in order of application; covers: names of the nodes that it replaces (a node
    may be covered twice: then it is computed in both); seconds: of the covered nodes, and of the fused one."""

    node: str
    op: str
    rules: tuple[str, ...]
    covers: tuple[str, ...]
    seconds_before: float
    seconds_after: float

    def line(self) -> str:
        return f"{self.node} = {self.op} of {' + '.join(self.covers)} by {' > '.join(self.rules)}"


@dataclass(frozen=True)
class BlockReport:
    """One distinct block: names are those of the first scope that it stands for.

    seconds: of one scope; fired: rule -> matches in one scope; proved: whether the extraction is the cheapest of the
    e-graph, which is all the rules can reach when saturated is true too; limits: which limits were met.
    """

    scopes: tuple[str, ...]
    ops_before: tuple[str, ...]
    ops_after: tuple[str, ...]
    seconds_before: float
    seconds_after: float
    fired: dict[str, int]
    fusions: tuple[Fusion, ...]
    classes: int
    nodes: int
    iterations: int
    saturated: bool
    proved: bool
    limits: tuple[str, ...] = ()


@dataclass(frozen=True)
class Rewritten:
    """graph: verified; fired: rule -> matches over all scopes (distinct substitutions, chosen or not; disabled rules
    are missing); chosen: fused op -> nodes in `graph`; seconds: predicted, at the bind that was priced; blocks: one
    entry a distinct block; egglog_text: the whole program, which egglog runs as it stands."""

    graph: Graph
    fired: dict[str, int]
    chosen: dict[str, int]
    seconds_before: float
    seconds_after: float
    blocks: tuple[BlockReport, ...]
    egglog_text: str = field(repr=False)

    @property
    def limits(self) -> list[str]:
        """Limits that were met, with the scope; empty means saturated and proved cheapest."""
        return [f"{b.scopes[0]}: {line}" for b in self.blocks for line in b.limits]

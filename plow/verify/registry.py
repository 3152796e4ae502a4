"""The seven checkpoints of a program, in order. One is added by writing payload_<letter>.py and naming it here."""

from __future__ import annotations

from plow.verify import payload_d
from plow.verify.checkpoint import Checkpoint

CHECKPOINTS: dict[str, Checkpoint] = {c.letter: c for c in (
    Checkpoint("A", "rule soundness", "every rewrite rule that fired keeps the meaning of the graph"),
    Checkpoint("B", "tile partition", "the tiles of every operator cover its output exactly once and are priced"),
    Checkpoint("C", "on-chip windows", "what a worker stages on chip at any time fits"),
    payload_d.CHECKPOINT,
    Checkpoint("E", "encoding", "the encoded bytes decode to the scheduled program"),
    Checkpoint("F", "arena lifetimes", "no two live values overlap, and every overlapping pair is ordered"),
    Checkpoint("G", "staging rows", "staged rows fit the staging buffer at every number of rows"),
)}

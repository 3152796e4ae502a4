"""Decode speed of the strongest peers beside our bundle: one GPU, one process, the same shape, interleaved rounds.

    PYTHONPATH=. python3 stages/s7_campaign/peers.py BUNDLE --config CONFIG.json [--rounds 5] [--steps 64]
        [--context 512] [--batch 1] [--arms plow,eager,triton,torch,static,reduce] [--out FILE]

plow     our bundle, as h200.py measures it: one launch of all steps
eager    transformers, DynamicCache, a greedy loop
triton   our own fused Triton kernels, tiles tuned at start, one CUDA graph a step, programmatic dependent launch
torch    our own decoder in plain torch, fused matrices, torch.compile, one CUDA graph a step
static   transformers, StaticCache, torch.compile (max-autotune), one CUDA graph a step
reduce   the same by torch.compile's mode reduce-overhead; weaker than `static`, so not in the default

Peers share random bf16 weights of the config's shape. Each is checked before it is timed: its logits, through the same
graph that is timed, against transformers in fp32; its error may be 1.5 times that of transformers in bf16. Milliseconds
a step: two CUDA events around `steps` steps, mean context `context`, median over rounds. stdout: JSON lines, schema
plow.decode/1; stderr: what happens, and a table. The machine needs torch, transformers, triton and CuPy.
"""

from __future__ import annotations

import h200  # a neighbour: the package stages.s7_campaign imports what a device machine lacks
from peers.bench import main

if __name__ == "__main__":
    main(h200, __doc__)

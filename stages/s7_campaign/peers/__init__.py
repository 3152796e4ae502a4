"""Peers that decode the same shape on the same card as our bundle; `peers.py` beside this folder is how they are run.

Here belong shapes, weights, arms (one a file), their check, the clock and the line of a result. All arms share one set
of random weights, whose fused matrices transformers sees as slices. Measuring our bundle belongs in `h200.py`.

Modules import each other relatively: the script runs where the package `stages.s7_campaign` cannot be imported (its
`__init__` needs more than a device machine has), so this folder is then the top-level package `peers`.
"""

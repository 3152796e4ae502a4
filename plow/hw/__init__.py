"""Hardware specs: what a machine can do, with the source of every number.

Belongs here: `Machine` and the JSON specs (`specs/<name>.json`) with datasheet and measured values side by side. Does
not belong here: the price of an operator (`plow.cost`), and the probes that measure a machine (the tuning stage).
"""

from plow.hw.machine import Machine, load, names

__all__ = ["Machine", "load", "names"]

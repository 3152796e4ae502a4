"""Model families: a strict config and `build(config) -> Graph` each, composed from shared blocks.

Belongs here: what a Hugging Face config field means, which tensors a family has, and the base operators that compute
it. Does not belong here: reading files (`checkpoint/`), fused operators (`rewrite/`), anything about a target.
"""

from plow.models.registry import FAMILIES, build
from plow.models.weights import bind_weights, check_weights

__all__ = ["FAMILIES", "bind_weights", "build", "check_weights"]

"""plow: from a Hugging Face checkpoint to a static packet program and a served deployment.

One path, one room a step: checkpoint -> models -> graph -> rewrite -> tiles -> schedule -> packet -> runtime -> serve.
Each room's docstring says what belongs in it; `tests/test_rooms.py` enforces which room may import which.
"""

__version__ = "0.1.0"

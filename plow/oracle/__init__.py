"""What is true: transformers in its own process, golden files made from it, comparison metrics, power checks.

Belongs here: everything that judges numbers and does not run the code that is judged. torch is imported in the
server process only (`hf_server.py`, extra `oracle`). Does not belong here: gates and thresholds (`stages/`), the
reference semantics of operators (`graph/`).
"""

"""Executing packets and turning requests into tokens.

Belongs here: bundles (`bundle`), backends (`numpy_vm`, the readable oracle; `cpu`, the C interpreter), KV blocks
(`kv`), sampling (`sampler`), the continuous-batching loop (`engine`, `async_engine`) and text (`text`, `chat`). Does
not belong here: compiling, model families, HTTP. Nothing in this room knows a model's name.
"""

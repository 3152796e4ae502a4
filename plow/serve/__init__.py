"""The OpenAI-compatible HTTP API over a bundle.

Belongs here: request and reply bodies (`protocol`), turning requests into texts (`service`), routes and streaming
(`app`). Does not belong here: batching, KV blocks, tokenizers and templates (runtime), the command line (cli).
"""

"""Checkpoints on disk: a Hugging Face directory as config, tensors, tokenizer files and generation config.

Belongs here: reading and checking safetensors files and their index, fetching a checkpoint, importing other formats
(GGUF) into a Hugging Face directory, digests. Does not belong here: what a config field means to a model family
(`models/`), packing weights for a target (`packet/`), running a tokenizer (`serve/`).
"""

from plow.checkpoint.generation import GenerationConfig
from plow.checkpoint.hub import resolve
from plow.checkpoint.reader import Checkpoint
from plow.checkpoint.safetensors_file import TensorInfo

__all__ = ["Checkpoint", "GenerationConfig", "TensorInfo", "resolve"]

"""Import a GGUF file into a Hugging Face checkpoint directory in bf16.

Quantised tensors are dequantised to float32 and rounded to bf16 (nearest even); from then on those bf16 values are
the model. Two things differ from the Hugging Face layout and are undone here (llama.cpp convert_hf_to_gguf.py): the
"llama" architecture stores q and k rows permuted for interleaved RoPE, "gemma3" stores norm weights with 1 added.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

from plow.checkpoint import gguf_tokenizer
from plow.errors import CheckpointError, ToolMissing

TOP = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
PROJECTIONS = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
LLAMA_NORMS = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
GEMMA3_NORMS = {
    "attn_norm": "input_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
}


@dataclass(frozen=True)
class GGUF:
    """fields: metadata by key; tensors: (name, f32 array [out, in]) produced one at a time."""

    path: Path
    fields: dict[str, Any]
    names: list[str]
    reader: Any

    @property
    def arch(self) -> str:
        return self.get("general.architecture")

    def get(self, key: str) -> Any:
        """A metadata value; raises CheckpointError when the file lacks it."""
        if key not in self.fields:
            raise CheckpointError(
                f"the GGUF file has no field {key!r}", self.path.name, "use a file written by llama.cpp's converter"
            )
        return self.fields[key]

    def geometry(self, key: str) -> Any:
        return self.get(f"{self.arch}.{key}")

    def tensors(self) -> Any:
        from gguf import dequantize

        for t in self.reader.tensors:
            yield (
                t.name,
                dequantize(t.data, t.tensor_type).astype(np.float32).reshape([int(d) for d in reversed(t.shape)]),
            )


def open_gguf(path: Path) -> GGUF:
    """Raises ToolMissing without the `gguf` package, CheckpointError when the file is no GGUF."""
    try:
        from gguf import GGUFReader
    except ImportError as e:
        raise ToolMissing("the gguf package is not installed", "gguf import", "pip install 'plow[demo]'") from e
    try:
        reader = GGUFReader(path)
    except (OSError, ValueError, IndexError) as e:
        raise CheckpointError(f"cannot read the GGUF file: {e}", str(path), "fetch it again") from e
    fields = {key: f.contents() for key, f in reader.fields.items()}
    return GGUF(path, fields, [t.name for t in reader.tensors], reader)


def convert(source: Path, out: Path) -> None:
    """Write config.json, model.safetensors (bf16), tokenizer and generation config of the GGUF file into the existing
    directory `out`. Raises CheckpointError for an architecture, tensor or tokenizer that is not covered."""
    gguf = open_gguf(source)
    if gguf.arch not in ARCHITECTURES:
        raise CheckpointError(
            f"GGUF architecture {gguf.arch!r} is not covered", source.name, f"covered: {', '.join(ARCHITECTURES)}"
        )
    config_of, name_of, adapt = ARCHITECTURES[gguf.arch]
    config = config_of(gguf)
    weights: dict[str, np.ndarray] = {}
    for name, w in gguf.tensors():
        weights[name_of(name, gguf)] = np.ascontiguousarray(adapt(name, w, config).astype(ml_dtypes.bfloat16))
    save_file(weights, out / "model.safetensors", metadata={"format": "pt"})
    (out / "config.json").write_text(json.dumps(config, indent=1))
    ids = {k: config[k] for k in ("bos_token_id", "eos_token_id", "pad_token_id")}
    (out / "generation_config.json").write_text(json.dumps(ids))
    gguf_tokenizer.write(gguf.fields, out, config["max_position_embeddings"])


def _token_ids(gguf: GGUF) -> dict[str, int]:
    return {
        "bos_token_id": gguf.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": gguf.get("tokenizer.ggml.eos_token_id"),
        "pad_token_id": gguf.get("tokenizer.ggml.padding_token_id"),
    }


def _llama_config(gguf: GGUF) -> dict[str, Any]:
    heads, hidden = gguf.geometry("attention.head_count"), gguf.geometry("embedding_length")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": gguf.geometry("vocab_size"),
        "hidden_size": hidden,
        "intermediate_size": gguf.geometry("feed_forward_length"),
        "num_hidden_layers": gguf.geometry("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": gguf.geometry("attention.head_count_kv"),
        "head_dim": hidden // heads,
        "max_position_embeddings": gguf.geometry("context_length"),
        "rms_norm_eps": _eps(gguf),
        "rope_theta": gguf.geometry("rope.freq_base"),
        "hidden_act": "silu",
        "tie_word_embeddings": "output.weight" not in gguf.names,
        "attention_bias": False,
        "mlp_bias": False,
        **_token_ids(gguf),
        "dtype": "bfloat16",
    }


def _gemma3_config(gguf: GGUF) -> dict[str, Any]:
    """sliding_window_pattern 6 and the local RoPE base are constants of the architecture: GGUF does not store them."""
    layers = gguf.geometry("block_count")
    kinds = ["full_attention" if (i + 1) % 6 == 0 else "sliding_attention" for i in range(layers)]
    return {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "vocab_size": len(gguf.get("tokenizer.ggml.tokens")),
        "hidden_size": gguf.geometry("embedding_length"),
        "intermediate_size": gguf.geometry("feed_forward_length"),
        "num_hidden_layers": layers,
        "num_attention_heads": gguf.geometry("attention.head_count"),
        "num_key_value_heads": gguf.geometry("attention.head_count_kv"),
        "head_dim": gguf.geometry("attention.key_length"),
        "query_pre_attn_scalar": gguf.geometry("attention.key_length"),
        "hidden_activation": "gelu_pytorch_tanh",
        "max_position_embeddings": gguf.geometry("context_length"),
        "rms_norm_eps": _eps(gguf),
        "sliding_window": gguf.geometry("attention.sliding_window"),
        "layer_types": kinds,
        "rope_theta": gguf.geometry("rope.freq_base"),
        "rope_local_base_freq": 10000.0,
        "tie_word_embeddings": "output.weight" not in gguf.names,
        "attention_bias": False,
        "attn_logit_softcapping": None,
        "final_logit_softcapping": None,
        **_token_ids(gguf),
        "dtype": "bfloat16",
    }


def _eps(gguf: GGUF) -> float:
    """Stored as float32: 9.9999997e-06 means 1e-05."""
    return float(f"{gguf.geometry('attention.layer_norm_rms_epsilon'):.6g}")


def _namer(norms: dict[str, str]) -> Callable[[str, GGUF], str]:
    parts = PROJECTIONS | norms

    def name_of(name: str, gguf: GGUF) -> str:
        if name in TOP:
            return TOP[name]
        pieces = name.split(".")
        if len(pieces) != 4 or pieces[0] != "blk" or pieces[2] not in parts or pieces[3] not in ("weight", "bias"):
            raise CheckpointError(
                f"tensor {name!r} of the GGUF file is not covered", gguf.path.name, "extend the name table"
            )
        return f"model.layers.{pieces[1]}.{parts[pieces[2]]}.{pieces[3]}"

    return name_of


def _llama_tensor(name: str, w: np.ndarray, config: dict[str, Any]) -> np.ndarray:
    """Un-permute q and k: rows of a head come as pairs (i, i + d/2) side by side, Hugging Face wants the halves."""
    part = name.split(".")[2] if name.startswith("blk.") else ""
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}.get(part)
    if heads is None:
        return w
    return w.reshape(heads, w.shape[0] // heads // 2, 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


def _gemma3_tensor(name: str, w: np.ndarray, config: dict[str, Any]) -> np.ndarray:
    return w - 1.0 if name.endswith("norm.weight") else w


Config = Callable[[GGUF], dict[str, Any]]
Adapt = Callable[[str, np.ndarray, dict[str, Any]], np.ndarray]
ARCHITECTURES: dict[str, tuple[Config, Callable[[str, GGUF], str], Adapt]] = {
    "llama": (_llama_config, _namer(LLAMA_NORMS), _llama_tensor),
    "gemma3": (_gemma3_config, _namer(GEMMA3_NORMS), _gemma3_tensor),
}

"""Tiny random checkpoints: complete Hugging Face directories in bf16, made from a seed without torch.

Projections have std 0.2, not transformers' 0.02, and norms are perturbed: with 0.02 attention is near-uniform and
logits near 0, which hides position, scale and norm bugs under any absolute tolerance. The values come from
numpy's legacy RandomState, whose stream is frozen, so golden files and fixtures agree on every machine.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

SPECIAL = ("<pad>", "<bos>", "<|im_end|>", "<|im_start|>")
WORDS = (
    "the",
    "and",
    "ing",
    "ion",
    "tent",
    "hello",
    "world",
    "token",
    "packet",
    "block",
    "layer",
    "user",
    "assist",
    "answer",
    "question",
    "one",
    "two",
    "three",
    "what",
    "with",
)
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
VOCAB_SIZE = 320

_COMMON: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "head_dim": 32,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "dtype": "bfloat16",
    "attention_bias": False,
    "transformers_version": "5.24.0",
}
LLAMA: dict[str, Any] = {
    **_COMMON,
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "mlp_bias": False,
    "tie_word_embeddings": False,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}
GEMMA3: dict[str, Any] = {
    **_COMMON,
    "architectures": ["Gemma3ForCausalLM"],
    "model_type": "gemma3_text",
    "num_hidden_layers": 3,
    "num_key_value_heads": 1,
    "hidden_activation": "gelu_pytorch_tanh",
    "rms_norm_eps": 1e-6,
    "query_pre_attn_scalar": 24,
    "sliding_window": 8,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    "tie_word_embeddings": True,
    "final_logit_softcapping": None,
    "attn_logit_softcapping": None,
    "rope_parameters": {
        "full_attention": {"rope_type": "default", "rope_theta": 1000000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
    },
}
QWEN3: dict[str, Any] = {
    **_COMMON,
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "use_sliding_window": False,
    "sliding_window": None,
    "max_window_layers": 2,
    "tie_word_embeddings": True,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0},
}


def tensors(config: dict[str, Any], seed: int) -> dict[str, np.ndarray]:
    """Random bf16 tensors by their Hugging Face name. Written out here rather than taken from `models/`, which is
    what they test."""
    rng, gemma = np.random.RandomState(seed), config["model_type"].startswith("gemma3")
    qk_norm = gemma or config["model_type"] == "qwen3"
    hidden, inter, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    head_dim = config.get("head_dim") or hidden // config["num_attention_heads"]
    q, kv = config["num_attention_heads"] * head_dim, config["num_key_value_heads"] * head_dim
    out: dict[str, np.ndarray] = {}

    def add(name: str, *shape: int) -> None:
        out[name] = (0.2 * rng.standard_normal(shape)).astype(np.float32)

    def norm(name: str, width: int) -> None:
        out[name] = (0.2 * rng.standard_normal(width) + (0.0 if gemma else 1.0)).astype(np.float32)

    add("model.embed_tokens.weight", vocab, hidden)
    for i in range(config["num_hidden_layers"]):
        p = f"model.layers.{i}"
        projections = {
            "self_attn.q_proj": (q, hidden),
            "self_attn.k_proj": (kv, hidden),
            "self_attn.v_proj": (kv, hidden),
            "self_attn.o_proj": (hidden, q),
            "mlp.gate_proj": (inter, hidden),
            "mlp.up_proj": (inter, hidden),
            "mlp.down_proj": (hidden, inter),
        }
        for module, shape in projections.items():
            add(f"{p}.{module}.weight", *shape)
            if config.get("attention_bias" if "attn" in module else "mlp_bias"):
                add(f"{p}.{module}.bias", shape[0])
        for name in (
            "input_layernorm",
            "post_attention_layernorm",
            *(("pre_feedforward_layernorm", "post_feedforward_layernorm") if gemma else ()),
        ):
            norm(f"{p}.{name}.weight", hidden)
        for name in ("q_norm", "k_norm") if qk_norm else ():
            norm(f"{p}.self_attn.{name}.weight", head_dim)
    norm("model.norm.weight", hidden)
    if not config["tie_word_embeddings"]:
        add("lm_head.weight", vocab, hidden)
    return {name: w.astype(ml_dtypes.bfloat16) for name, w in out.items()}


def tokenizer() -> Tokenizer:
    """Byte-level BPE with VOCAB_SIZE tokens: the special ones, 256 bytes, and merges that spell WORDS."""
    vocab = {t: i for i, t in enumerate((*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet())))}
    merges: list[tuple[str, str]] = []
    for word in WORDS:
        left = word[0]
        for right in word[1:]:
            if left + right not in vocab and len(vocab) < VOCAB_SIZE:
                vocab[left + right] = len(vocab)
                merges.append((left, right))
            left += right
    tok = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tok.decoder = decoders.ByteLevel()
    tok.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIAL])
    return tok


def write(path: Path, config: dict[str, Any], seed: int = 0, shards: int = 1) -> Path:
    """Write a complete checkpoint directory; `shards` > 1 splits the weights and adds the index. Returns `path`."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(config, indent=1))
    weights = tensors(config, seed)
    if shards == 1:
        save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
    else:
        write_shards(path, weights, shards)
    tok = tokenizer()
    if tok.get_vocab_size() > config["vocab_size"]:
        raise ValueError(
            f"vocab_size {config['vocab_size']} is smaller than the tiny tokenizer's {tok.get_vocab_size()}"
        )
    tok.save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "pad_token": SPECIAL[0],
                "bos_token": SPECIAL[1],
                "eos_token": SPECIAL[2],
                "chat_template": CHAT_TEMPLATE,
                "model_max_length": config["max_position_embeddings"],
                "clean_up_tokenization_spaces": False,
            }
        )
    )
    ids = {k: config[k] for k in ("bos_token_id", "eos_token_id", "pad_token_id")}
    (path / "generation_config.json").write_text(json.dumps(ids))
    return path


def write_shards(path: Path, weights: dict[str, np.ndarray], shards: int) -> None:
    """Shards `model-0000i-of-0000n.safetensors` with their index."""
    names = list(weights)
    size = -(-len(names) // shards)
    weight_map: dict[str, str] = {}
    for i in range(shards):
        file, part = f"model-{i + 1:05d}-of-{shards:05d}.safetensors", names[i * size : (i + 1) * size]
        save_file({n: weights[n] for n in part}, path / file, metadata={"format": "pt"})
        weight_map.update(dict.fromkeys(part, file))
    total = sum(w.nbytes for w in weights.values())
    (path / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {"total_size": total}, "weight_map": weight_map})
    )

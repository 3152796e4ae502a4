"""Random weights of a shape, drawn on the device, and random keys and values. All arms of a run share them."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from .shape import Shape

SCALE = 0.02
GAIN_SPREAD = 0.1
"""Gains of norms are drawn around 1: an arm that leaves one out must fail its check."""


@dataclass
class Layer:
    """bf16. norm1, norm2: [hidden]; qkv: [(heads + 2 kv_heads) head_dim, hidden], rows of q, then k, then v;
    o: [hidden, heads head_dim]; gate_up: [2 ffn, hidden]; down: [hidden, ffn]; q_norm, k_norm: [head_dim]."""

    norm1: torch.Tensor
    qkv: torch.Tensor
    o: torch.Tensor
    norm2: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor
    q_norm: torch.Tensor
    k_norm: torch.Tensor


@dataclass
class Weights:
    """embed, head: [vocab, hidden], one tensor when tied; norm: [hidden]."""

    shape: Shape
    embed: torch.Tensor
    layers: list[Layer]
    norm: torch.Tensor
    head: torch.Tensor

    @property
    def device(self) -> torch.device:
        return self.embed.device

    def state(self) -> dict[str, torch.Tensor]:
        """transformers' names -> slices of these tensors (no copies)."""
        s, found = self.shape, {"model.embed_tokens.weight": self.embed, "model.norm.weight": self.norm}
        found["lm_head.weight"] = self.head
        q, kv = s.heads * s.head_dim, s.kv_heads * s.head_dim
        for i, layer in enumerate(self.layers):
            parts = {
                "self_attn.q_proj": layer.qkv[:q],
                "self_attn.k_proj": layer.qkv[q : q + kv],
                "self_attn.v_proj": layer.qkv[q + kv :],
                "self_attn.o_proj": layer.o,
                "mlp.gate_proj": layer.gate_up[: s.ffn],
                "mlp.up_proj": layer.gate_up[s.ffn :],
                "mlp.down_proj": layer.down,
                "input_layernorm": layer.norm1,
                "post_attention_layernorm": layer.norm2,
            }
            if s.qk_norm:
                parts |= {"self_attn.q_norm": layer.q_norm, "self_attn.k_norm": layer.k_norm}
            found |= {f"model.layers.{i}.{name}.weight": tensor for name, tensor in parts.items()}
        return found


def draw(shape: Shape, device: str, seed: int = 1, scale: float = SCALE) -> Weights:
    """bf16 weights, normal with `scale`; gains around 1."""
    g = torch.Generator(device=device).manual_seed(seed)

    def matrix(rows: int, columns: int) -> torch.Tensor:
        return torch.empty(rows, columns, dtype=torch.bfloat16, device=device).normal_(0.0, scale, generator=g)

    def gain(n: int) -> torch.Tensor:
        return torch.empty(n, dtype=torch.bfloat16, device=device).normal_(1.0, GAIN_SPREAD, generator=g)

    s, width = shape, shape.heads * shape.head_dim
    embed = matrix(s.vocab, s.hidden)
    layers = [
        Layer(
            norm1=gain(s.hidden),
            qkv=matrix(s.qkv_rows, s.hidden),
            o=matrix(s.hidden, width),
            norm2=gain(s.hidden),
            gate_up=matrix(2 * s.ffn, s.hidden),
            down=matrix(s.hidden, s.ffn),
            q_norm=gain(s.head_dim),
            k_norm=gain(s.head_dim),
        )
        for _ in range(s.layers)
    ]
    return Weights(s, embed, layers, gain(s.hidden), embed if s.tied else matrix(s.vocab, s.hidden))


def random_kv(shape: Shape, batch: int, positions: int, device: str, seed: int = 2) -> torch.Tensor:
    """bf16 [layers, 2, batch, kv_heads, positions, head_dim], standard normal: keys and values are never zeros."""
    g = torch.Generator(device=device).manual_seed(seed)
    kv = torch.empty(
        shape.layers, 2, batch, shape.kv_heads, positions, shape.head_dim, dtype=torch.bfloat16, device=device
    )
    return kv.normal_(0.0, 1.0, generator=g)

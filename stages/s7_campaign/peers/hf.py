"""Arms: transformers, eager with a growing cache, and compiled with a static one. Reference: transformers in fp32."""

from __future__ import annotations

import inspect
from typing import Any

import torch
import transformers
from transformers import DynamicCache, StaticCache

from .arm import Arm, capture
from .shape import Shape
from .weights import Weights

NOT_CONFIG = ("architectures", "model_type", "torch_dtype", "dtype", "transformers_version", "quantization_config")
CLASSES = {"llama": ("LlamaConfig", "LlamaForCausalLM"), "qwen3": ("Qwen3Config", "Qwen3ForCausalLM")}


def config_of(shape: Shape) -> Any:
    """The family's config object. RoPE goes in as rope_theta and rope_scaling, which releases 4 and 5 both read."""
    values = {k: v for k, v in shape.config.items() if k not in NOT_CONFIG}
    rope = dict(values.pop("rope_parameters", None) or values.pop("rope_scaling", None) or {})
    theta = rope.pop("rope_theta", values.pop("rope_theta", 10000.0))
    scaled = rope.get("rope_type", rope.get("type", "default")) != "default"
    values |= {"rope_theta": theta, "rope_scaling": rope if scaled else None, "use_cache": True}
    config = getattr(transformers, CLASSES[shape.family][0])(**values)
    config._attn_implementation = "sdpa"
    return config


def build(weights: Weights, dtype: torch.dtype = torch.bfloat16) -> Any:
    """The family's model whose parameters are slices of `weights`; in another dtype, copies."""
    with torch.device("meta"):
        model = getattr(transformers, CLASSES[weights.shape.family][1])(config_of(weights.shape))
    model.load_state_dict({k: v.to(dtype) for k, v in weights.state().items()}, strict=True, assign=True)
    rotary = type(model.model.rotary_emb)(config=model.config)
    model.model.rotary_emb = rotary.to(weights.device)
    return model.eval().requires_grad_(False)


def cache_name(model: Any) -> str:
    """What this release calls the argument that takes a cache."""
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"


def rope_tables(shape: Shape, positions: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """cos, sin: f32 [positions, head_dim / 2], as transformers computes them for the config."""
    with torch.device("meta"):
        model = getattr(transformers, CLASSES[shape.family][1])(config_of(shape)).model
    rotary = type(model.rotary_emb)(config=model.config).to(device)
    at = torch.arange(positions, device=device)[None]
    cos, sin = rotary(torch.zeros(1, dtype=torch.float32, device=device), at)
    return cos[0, :, : shape.head_dim // 2].contiguous(), sin[0, :, : shape.head_dim // 2].contiguous()


class Eager(Arm):
    """transformers as a user runs it: one kernel an operation, DynamicCache, greedy; tokens stay on the device."""

    def __init__(self, weights: Weights, batch: int, max_ctx: int, dtype: torch.dtype = torch.bfloat16) -> None:
        super().__init__(weights, batch, max_ctx)
        self.dtype = dtype
        self.model = build(weights, dtype)
        self.cache_name = cache_name(self.model)
        self.kv: torch.Tensor | None = None
        self.cache, self.length = DynamicCache(), 0

    def fill(self, kv: torch.Tensor) -> None:
        self.kv, self.length = kv, -1

    def seek(self, token: torch.Tensor, position: int) -> None:
        """A cache of `position` positions is made anew unless it has so many."""
        super().seek(token, position)
        if position != self.length:
            self.cache, self.length = DynamicCache(), position
            for i in range(self.shape.layers if position else 0):
                assert self.kv is not None
                k, v = self.kv[i, :, :, :, :position].to(self.dtype)
                self.cache.update(k, v, i)

    @torch.no_grad()
    def step(self) -> None:
        out = self.model(
            input_ids=self.token[:, None],
            position_ids=self.position.expand(self.batch)[:, None],
            use_cache=True,
            **{self.cache_name: self.cache},
        )
        self.length += 1
        self.logits = out.logits[:, -1]
        self.token = self.logits.argmax(-1)
        self.position += 1


class Static(Arm):
    """transformers with StaticCache under torch.compile. graph: one CUDA graph over forward, arg-max and position, by
    hand; else the compiler's own (mode "reduce-overhead")."""

    def __init__(self, weights: Weights, batch: int, max_ctx: int, mode: str, graph: bool) -> None:
        super().__init__(weights, batch, max_ctx)
        s, device = self.shape, weights.device
        self.by_hand, self.note = graph, f"mode {mode}"
        self.model = build(weights)
        self.cache = StaticCache(
            config=self.model.config, max_batch_size=batch, max_cache_len=max_ctx, device=device, dtype=torch.bfloat16
        )
        if hasattr(self.cache, "early_initialization"):
            self.cache.early_initialization(batch, s.kv_heads, s.head_dim, torch.bfloat16, device)
        for tensor in (self.token, self.position):
            torch._dynamo.mark_static_address(tensor)
        self.cache_name = cache_name(self.model)
        self.needs_cache_position = "cache_position" in inspect.signature(self.model.model.forward).parameters
        self.forward = torch.compile(self._forward, mode=mode, fullgraph=True, dynamic=False)

    def _forward(self, token: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        extra = {self.cache_name: self.cache} | ({"cache_position": position} if self.needs_cache_position else {})
        out = self.model(
            input_ids=token[:, None],
            position_ids=position.expand(token.shape[0])[:, None],
            use_cache=True,
            **extra,
        )
        return out.logits[:, -1]

    def fill(self, kv: torch.Tensor) -> None:
        for i in range(self.shape.layers):
            keys, values = self._tensors(i)
            keys[:, :, : kv.shape[4]] = kv[i, 0]
            values[:, :, : kv.shape[4]] = kv[i, 1]

    def _tensors(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        cache: Any = self.cache
        if hasattr(cache, "layers"):
            return cache.layers[layer].keys, cache.layers[layer].values
        return cache.key_cache[layer], cache.value_cache[layer]

    def seek(self, token: torch.Tensor, position: int) -> None:
        super().seek(token, position)
        for layer in getattr(self.cache, "layers", ()):
            length = getattr(layer, "cumulative_length", None)  # release 5 counts in the cache
            if isinstance(length, torch.Tensor):
                length.fill_(position)

    @torch.no_grad()
    def step(self) -> None:
        if not self.by_hand:
            torch.compiler.cudagraph_mark_step_begin()
        self.logits = self.forward(self.token, self.position)
        self.token.copy_(self.logits.argmax(-1))
        self.position.add_(1)

    @torch.no_grad()
    def prepare(self, start: int) -> None:
        self.seek(self.token, start)
        if self.by_hand:
            self.graph = capture(self.step, warm=3)
        else:
            for _ in range(3):
                self.step()

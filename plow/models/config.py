"""Strict reading of config.json: every field is consumed, ignored for a stated reason, or a typed error."""

from __future__ import annotations

import difflib
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from plow.errors import ConfigError

WHERE = "config.json"
TRAINING = "used in training only"
REPORTING = "describes the file or what a Python caller gets back, not the computation"
IGNORED = {
    "_name_or_path": REPORTING,
    "transformers_version": REPORTING,
    "torch_dtype": "the tensors say how they are stored",
    "dtype": "the tensors say how they are stored",
    "use_cache": REPORTING,
    "return_dict": REPORTING,
    "output_attentions": REPORTING,
    "output_hidden_states": REPORTING,
    "cache_implementation": REPORTING,
    "id2label": "classification heads only",
    "label2id": "classification heads only",
    "problem_type": "classification heads only",
    "num_labels": "classification heads only",
    "attention_dropout": TRAINING,
    "initializer_range": TRAINING,
    "pretraining_tp": "splits matrix products as in training; the result is the same",
    "chunk_size_feed_forward": "splits the MLP over positions; the result is the same",
    "bos_token_id": "read with the generation config",
    "eos_token_id": "read with the generation config",
    "pad_token_id": "read with the generation config",
}
"""Fields of every decoder-only config that do not change the forward pass, with the reason."""

Positive = Field(gt=0)


class FamilyConfig(BaseModel):
    """Base of a family's config. A field without a default must be present: its value cannot be inferred from the
    weights. `architectures`: the transformers class, checked against SOURCE when given."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)
    SOURCE: ClassVar[str] = ""
    IGNORED: ClassVar[dict[str, str]] = IGNORED
    MUST_BE: ClassVar[dict[str, tuple[tuple[Any, ...], str]]] = {
        "is_encoder_decoder": ((False,), "decoder-only models are supported"),
        "quantization_config": ((None,), "the weights must be bf16: convert the checkpoint first"),
    }
    """field -> (the only values it may have, why): anything else would need another graph."""
    SPELLINGS: ClassVar[dict[str, str]] = {}
    """other spelling of a field -> its main one."""

    model_type: str
    architectures: list[str] | None = None
    vocab_size: int = Positive
    hidden_size: int = Positive
    intermediate_size: int = Positive
    num_hidden_layers: int = Positive
    num_attention_heads: int = Positive
    num_key_value_heads: int = Positive
    head_dim: int = Positive
    max_position_embeddings: int = Positive
    rms_norm_eps: float = Positive
    rope_theta: float | None = Field(None, gt=0)
    rope_scaling: dict[str, Any] | None = None
    rope_parameters: dict[str, Any] | None = None
    attention_bias: bool = False
    tie_word_embeddings: bool = False

    @classmethod
    def parse(cls, config: dict[str, Any]) -> Self:
        """config: config.json as read. Raises ConfigError that names the field for: an unknown field, a missing one,
        a wrong type, a value that the family does not support."""
        for name, (allowed, why) in cls.MUST_BE.items():
            if name in config and not any(config[name] is a or config[name] == a for a in allowed):
                raise ConfigError(
                    f"{name} = {config[name]!r} is not supported: {why}",
                    WHERE,
                    f"supported: {', '.join(map(repr, allowed))}",
                )
        kept = cls._renamed({k: v for k, v in config.items() if k not in cls.IGNORED and k not in cls.MUST_BE})
        for name in kept:
            if name not in cls.model_fields:
                raise ConfigError(f"unknown field {name!r}", WHERE, cls._advice(name))
        try:
            parsed = cls.model_validate(cls.with_derived(kept))
        except ValidationError as e:
            raise cls._typed(e) from e
        if parsed.architectures and parsed.architectures != [cls.SOURCE]:
            raise ConfigError(
                f"architectures = {parsed.architectures} is not supported", WHERE, f"supported: {cls.SOURCE}"
            )
        if parsed.num_attention_heads % parsed.num_key_value_heads:
            raise ConfigError(
                f"num_attention_heads = {parsed.num_attention_heads} is no multiple of num_key_value_heads = "
                f"{parsed.num_key_value_heads}",
                WHERE,
                "correct the field",
            )
        if parsed.head_dim % 2:
            raise ConfigError(f"head_dim = {parsed.head_dim} is odd; RoPE rotates pairs", WHERE, "correct the field")
        parsed.check()
        return parsed

    @classmethod
    def with_derived(cls, kept: dict[str, Any]) -> dict[str, Any]:
        """Fill fields whose absence has one meaning in transformers and that the weight shapes confirm."""
        return kept

    def check(self) -> None:
        """Family-specific consistency; raises ConfigError."""

    def meta(self, config: dict[str, Any], caches: list[dict[str, Any]]) -> dict[str, Any]:
        """graph.meta: the geometry that later rooms need, and what happened to every field of config.json."""
        return {
            "family": self.model_type,
            "source": self.SOURCE,
            "num_layers": self.num_hidden_layers,
            "hidden_size": self.hidden_size,
            "vocab_size": self.vocab_size,
            "num_heads": self.num_attention_heads,
            "num_kv_heads": self.num_key_value_heads,
            "head_dim": self.head_dim,
            "max_position_embeddings": self.max_position_embeddings,
            "tie_word_embeddings": self.tie_word_embeddings,
            "caches": caches,
            **self.fields_report(config),
        }

    @classmethod
    def fields_report(cls, config: dict[str, Any]) -> dict[str, Any]:
        """What happened to every field of this config.json: `consumed_fields`, `ignored_fields` with reasons, and the
        `derived_fields` that it lacks."""
        full = cls.with_derived(cls._renamed(config))
        return {
            "consumed_fields": sorted(k for k in config if k not in cls.IGNORED),
            "ignored_fields": {k: cls.IGNORED[k] for k in sorted(config) if k in cls.IGNORED},
            "derived_fields": sorted(
                k for k, v in full.items() if v is not None and cls._renamed(config).get(k) is None
            ),
        }

    @classmethod
    def _renamed(cls, config: dict[str, Any]) -> dict[str, Any]:
        """The config with every field under its main spelling."""
        out = {k: v for k, v in config.items() if k not in cls.SPELLINGS}
        for other, name in cls.SPELLINGS.items():
            if other in config and out.setdefault(name, config[other]) != config[other]:
                raise ConfigError(f"{other} = {config[other]!r} and {name} = {out[name]!r} disagree", WHERE, "keep one")
        return out

    @classmethod
    def _advice(cls, name: str) -> str:
        near = difflib.get_close_matches(name, [*cls.model_fields, *cls.MUST_BE], 1, 0.8)
        if near:
            return f"did you mean {near[0]!r}?"
        return f"remove it if {cls.SOURCE} does not read it; otherwise this family does not cover the checkpoint"

    @classmethod
    def _typed(cls, e: ValidationError) -> ConfigError:
        first = e.errors()[0]
        name = ".".join(str(p) for p in first["loc"])
        if first["type"] == "missing":
            return ConfigError(f"field {name!r} is missing", WHERE, f"add it: {cls.SOURCE} cannot be built without it")
        return ConfigError(f"{name} = {first['input']!r}: {first['msg']}", WHERE, "correct the field")

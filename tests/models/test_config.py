"""Every field of config.json is consumed, ignored for a reason, or a typed error that names it."""

from __future__ import annotations

from typing import Any

import pytest

from plow.errors import ConfigError, UnsupportedArchitecture
from plow.graph import Graph
from plow.models import FAMILIES, build
from plow.models.gemma3 import Gemma3Config
from plow.models.llama import LlamaConfig
from plow.models.qwen3 import Qwen3Config
from plow.oracle.tiny import GEMMA3, LLAMA, QWEN3

MISTRAL = {k: v for k, v in LLAMA.items() if k not in ("attention_bias", "mlp_bias")} | {
    "model_type": "mistral",
    "architectures": ["MistralForCausalLM"],
    "sliding_window": 6,
}
CONFIGS = {"llama": LLAMA, "gemma3_text": GEMMA3, "mistral": MISTRAL, "qwen3": QWEN3}
OLD_LLAMA = {k: v for k, v in LLAMA.items() if k != "rope_parameters"} | {"rope_theta": 10000.0, "rope_scaling": None}
OLD_GEMMA3 = {k: v for k, v in GEMMA3.items() if k not in ("rope_parameters", "layer_types")} | {
    "rope_theta": 1000000.0,
    "rope_local_base_freq": 10000.0,
    "rope_scaling": None,
    "sliding_window_pattern": 2,
}
QWEN3_06B: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 151643,
    "eos_token_id": 151645,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 1024,
    "initializer_range": 0.02,
    "intermediate_size": 3072,
    "max_position_embeddings": 40960,
    "max_window_layers": 28,
    "model_type": "qwen3",
    "num_attention_heads": 16,
    "num_hidden_layers": 28,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": None,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.51.0",
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
QWEN3_8B = QWEN3_06B | {
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "max_window_layers": 36,
    "num_attention_heads": 32,
    "num_hidden_layers": 36,
    "tie_word_embeddings": False,
}
"""config.json as published (Qwen/Qwen3-0.6B and Qwen/Qwen3-8B)."""
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}


def without(config: dict[str, Any], *names: str) -> dict[str, Any]:
    return {k: v for k, v in config.items() if k not in names}


def attrs(graph: Graph, node: str) -> dict[str, Any]:
    return next(n.attrs for n in graph.nodes if n.name == node)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_field_is_consumed_or_ignored_with_a_reason(family: str) -> None:
    config = CONFIGS[family] | {"use_cache": True, "_name_or_path": "x", "attention_dropout": 0.0}
    meta = build(config).meta
    assert set(meta["consumed_fields"]) | set(meta["ignored_fields"]) == set(config)
    assert not set(meta["consumed_fields"]) & set(meta["ignored_fields"])
    assert all(meta["ignored_fields"].values())


@pytest.mark.parametrize("family", FAMILIES)
def test_an_unknown_field_is_a_typed_error_that_names_it(family: str) -> None:
    with pytest.raises(ConfigError, match="unknown field 'residual_multiplier'"):
        build(CONFIGS[family] | {"residual_multiplier": 0.22})
    with pytest.raises(ConfigError, match="did you mean 'num_key_value_heads'"):
        build(without(CONFIGS[family], "num_key_value_heads") | {"num_key_value_head": 2})


GEOMETRY = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
            "max_position_embeddings", "rms_norm_eps")  # fmt: skip
MORE = {
    "llama": ("hidden_act",),
    "mistral": ("hidden_act", "sliding_window"),
    "gemma3_text": ("hidden_activation", "head_dim", "num_key_value_heads", "query_pre_attn_scalar", "sliding_window",
                    "layer_types"),
    "qwen3": ("hidden_act", "head_dim", "num_key_value_heads"),
}  # fmt: skip


@pytest.mark.parametrize(("family", "name"), [(f, n) for f in FAMILIES for n in (*GEOMETRY, *MORE[f])])
def test_missing_geometry_is_a_typed_error(family: str, name: str) -> None:
    with pytest.raises(ConfigError, match=f"field '{name}' is missing"):
        build(without(CONFIGS[family], name))


@pytest.mark.parametrize("name", [n for n in GEOMETRY if n != "rms_norm_eps"])
@pytest.mark.parametrize("value", [0, -1, 1.5, "64", True, None])
def test_geometry_of_a_wrong_type_or_sign_is_a_typed_error(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=name):
        build(LLAMA | {name: value})


@pytest.mark.parametrize("value", [0.0, -1e-5, float("nan"), float("inf"), "1e-5"])
def test_a_bad_eps_is_a_typed_error(value: object) -> None:
    with pytest.raises(ConfigError, match="rms_norm_eps"):
        build(LLAMA | {"rms_norm_eps": value})


@pytest.mark.parametrize(
    ("family", "change"),
    [
        ("llama", {"hidden_act": "gelu"}),
        ("llama", {"architectures": ["LlamaForSequenceClassification"]}),
        ("llama", {"is_encoder_decoder": True}),
        ("llama", {"quantization_config": {"quant_method": "fp8"}}),
        ("llama", {"num_key_value_heads": 3}),
        ("llama", {"head_dim": 31}),
        ("mistral", {"attention_bias": True}),
        ("gemma3_text", {"hidden_activation": "relu"}),
        ("gemma3_text", {"attn_logit_softcapping": 50.0}),
        ("gemma3_text", {"use_bidirectional_attention": True}),
        ("gemma3_text", {"layer_types": ["sliding_attention", "full_attention", "chunked_attention"]}),
        ("gemma3_text", {"layer_types": ["full_attention"]}),
        ("gemma3_text", {"sliding_window_pattern": 3}),
        ("qwen3", {"hidden_act": "gelu"}),
        ("qwen3", {"architectures": ["Qwen3MoeForCausalLM"]}),
        ("qwen3", {"attention_bias": True}),
        ("qwen3", {"use_sliding_window": True}),
        ("qwen3", {"layer_types": ["full_attention", "sliding_attention"]}),
        ("qwen3", {"layer_types": ["full_attention"]}),
        ("qwen3", {"num_key_value_heads": None}),
        ("qwen3", {"head_dim": None}),
        ("qwen3", {"mlp_bias": False}),
    ],
)
def test_an_unsupported_value_is_a_typed_error_that_names_the_field(family: str, change: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(change))):
        build(CONFIGS[family] | change)


def test_an_unsupported_architecture_lists_the_known_ones_and_the_closest() -> None:
    known = "known: llama, mistral, gemma3_text, qwen3"
    with pytest.raises(UnsupportedArchitecture, match=f"{known}; closest: gemma3_text"):
        build(GEMMA3 | {"model_type": "gemma3"})
    with pytest.raises(UnsupportedArchitecture, match="closest: qwen3"):
        build(QWEN3 | {"model_type": "qwen3_moe"})
    with pytest.raises(UnsupportedArchitecture, match="'mamba2' is not supported"):
        build({"model_type": "mamba2"})
    with pytest.raises(UnsupportedArchitecture, match="model_type is None"):
        build({})


def test_head_dim_need_not_be_hidden_size_over_heads() -> None:
    graph = build(LLAMA)
    assert graph.meta["head_dim"] == 32 != LLAMA["hidden_size"] // LLAMA["num_attention_heads"]
    assert attrs(graph, "layer.0.q_rope")["rotary_dim"] == 32
    assert graph.weights["model.layers.0.self_attn.q_proj.weight"].shape == (128, 64)


def test_llama_derives_what_transformers_derives_and_says_so() -> None:
    graph = build(without(LLAMA, "head_dim", "num_key_value_heads", "tie_word_embeddings"))
    assert (graph.meta["head_dim"], graph.meta["num_kv_heads"], graph.meta["tie_word_embeddings"]) == (16, 4, False)
    assert graph.meta["derived_fields"] == ["head_dim", "num_key_value_heads"]
    assert build(LLAMA | {"head_dim": None}).meta["derived_fields"] == ["head_dim"]
    with pytest.raises(ConfigError, match="hidden_size 64 is no multiple of 6 heads"):
        build(without(LLAMA, "head_dim") | {"num_attention_heads": 6})


def test_old_and_new_rope_spellings_give_the_same_graph() -> None:
    assert build(OLD_LLAMA).nodes == build(LLAMA).nodes
    assert build(OLD_GEMMA3).nodes == build(GEMMA3).nodes
    renamed = without(OLD_GEMMA3, "sliding_window_pattern") | {"_sliding_window_pattern": 2}
    assert build(renamed).nodes == build(GEMMA3).nodes
    with pytest.raises(ConfigError, match="disagree"):
        build(OLD_GEMMA3 | {"_sliding_window_pattern": 3})


@pytest.mark.parametrize("kind_key", ["type", "rope_type"])
def test_both_names_of_the_rope_type_are_read(kind_key: str) -> None:
    old = build(OLD_LLAMA | {"rope_scaling": {kind_key: "llama3", **LLAMA3}})
    new = build(LLAMA | {"rope_parameters": {"rope_theta": 10000.0, "rope_type": "llama3", **LLAMA3}})
    assert old.nodes == new.nodes
    assert attrs(new, "layer.0.k_rope")["scaling"] == {"rope_type": "llama3", **LLAMA3}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"rope_scaling": {"type": "linear", "rope_type": "llama3", **LLAMA3}}, "disagree"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope_type 'yarn' is not supported"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "'low_freq_factor' is missing"),
        ({"rope_scaling": {"type": "linear"}}, "'factor' is missing"),
        ({"rope_scaling": {"type": "linear", "factor": 0}}, "factor = 0 is no positive number"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0, "beta": 1}}, "takes no parameter 'beta'"),
        ({"rope_scaling": {"partial_rotary_factor": 0.5}}, "takes no parameter 'partial_rotary_factor'"),
        ({"rope_parameters": {"rope_theta": 5.0}}, "rope_theta is 5.0 inside and 10000.0 outside"),
        ({"rope_parameters": {"rope_type": "default"}, "rope_scaling": {"type": "linear", "factor": 2}}, "differ"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1e4}}}, "takes no parameter 'full_attention'"),
        ({"rope_theta": None}, "'rope_theta' is missing"),
        ({"rope_theta": -1.0}, "rope_theta"),
    ],
)
def test_each_contradiction_about_rope_is_named(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        build(OLD_LLAMA | change)


def test_gemma_ropes_are_read_per_layer_type() -> None:
    graph = build(OLD_GEMMA3 | {"rope_scaling": {"rope_type": "linear", "factor": 8.0}})
    assert attrs(graph, "layer.1.q_rope")["scaling"] == {"rope_type": "linear", "factor": 8.0}
    assert attrs(graph, "layer.1.q_rope")["theta"] == 1000000.0
    assert attrs(graph, "layer.0.q_rope")["scaling"] == {} and attrs(graph, "layer.0.q_rope")["theta"] == 10000.0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}, "nests it by layer type"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1e6}}}, "'rope_theta' is missing"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "both given"),
    ],
)
def test_gemma_ropes_of_another_form_are_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        build(GEMMA3 | change)
    with pytest.raises(ConfigError, match="'rope_local_base_freq' is missing"):
        build(without(OLD_GEMMA3, "rope_local_base_freq"))


def test_window_scale_softcap_and_embedding_scale_follow_the_config() -> None:
    graph = build(GEMMA3 | {"final_logit_softcapping": 30.0})
    assert [c["window"] for c in graph.meta["caches"]] == [8, 0, 8]
    assert attrs(graph, "layer.0.attention")["scale"] == 24**-0.5
    assert attrs(graph, "embed.embed_tokens")["scale"] == 8.0
    assert graph.nodes[-1].op == "softcap" and graph.outputs == ["logits"]
    assert build(GEMMA3).nodes[-1].op == "linear"


def test_mistral_windows_every_layer_or_none() -> None:
    assert {c["window"] for c in build(MISTRAL).meta["caches"]} == {6}
    assert {c["window"] for c in build(MISTRAL | {"sliding_window": None}).meta["caches"]} == {0}


def test_published_qwen3_configs_build_the_published_shapes() -> None:
    small, large = build(QWEN3_06B), build(QWEN3_8B)
    assert small.weights["model.layers.27.self_attn.q_proj.weight"].shape == (2048, 1024)
    assert small.weights["model.layers.0.self_attn.k_norm.weight"].shape == (128,)
    assert large.weights["model.layers.35.self_attn.o_proj.weight"].shape == (4096, 4096)
    assert "lm_head.weight" in large.weights and "lm_head.weight" not in small.weights
    assert {"sliding_window", "max_window_layers", "torch_dtype"} <= set(small.meta["ignored_fields"])
    assert set(small.meta["consumed_fields"]) | set(small.meta["ignored_fields"]) == set(QWEN3_06B)
    with pytest.raises(ConfigError, match="'yarn' is not supported"):
        build(QWEN3_8B | {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}})


def test_qwen3_norms_the_heads_of_q_and_k_before_they_are_rotated() -> None:
    graph, llama = build(QWEN3), build(LLAMA)
    inputs = {n.name: n.inputs for n in graph.nodes}
    for part in ("q", "k"):
        assert inputs[f"layer.1.{part}_rope"][0] == f"layer.1.{part}_norm"
        norm = f"model.layers.1.self_attn.{part}_norm.weight"
        assert inputs[f"layer.1.{part}_norm"] == (f"layer.1.{part}_proj", norm)
        assert attrs(graph, f"layer.1.{part}_norm") == {"eps": 1e-6, "zero_centered": False}
    assert not any(n.name.endswith(("q_norm", "k_norm")) for n in llama.nodes)


def test_qwen3_layers_see_all_positions_whatever_an_unused_window_says() -> None:
    plain = build(QWEN3)
    assert {c["window"] for c in plain.meta["caches"]} == {0}
    for change in ({"sliding_window": 4096, "max_window_layers": 0}, {"layer_types": ["full_attention"] * 2}):
        assert build(QWEN3 | change).nodes == plain.nodes
    bare = build(without(QWEN3, "use_sliding_window", "sliding_window", "max_window_layers", "attention_bias"))
    assert bare.nodes == plain.nodes
    with pytest.raises(ConfigError, match="use_sliding_window = True is not supported"):
        build(QWEN3 | {"use_sliding_window": True, "sliding_window": 4096, "max_window_layers": 0})


def test_biases_are_inputs_exactly_where_the_config_declares_them() -> None:
    def biased(config: dict[str, Any]) -> set[str]:
        return {w.split(".")[-2] for w in build(config).weights if w.endswith(".bias")}

    attention, mlp = {"q_proj", "k_proj", "v_proj", "o_proj"}, {"gate_proj", "up_proj", "down_proj"}
    assert biased(LLAMA) == set()
    assert biased(LLAMA | {"attention_bias": True}) == attention
    assert biased(LLAMA | {"mlp_bias": True}) == mlp
    assert biased(GEMMA3 | {"attention_bias": True}) == attention


def test_scopes_and_names_are_the_contract() -> None:
    graph = build(LLAMA)
    assert [scope for scope, _ in graph.scopes()] == ["embed", "layer.0", "layer.1", "head"]
    assert all(n.name.startswith(f"{n.scope}.") for n in graph.nodes)
    assert [c["name"] for c in graph.meta["caches"]] == ["layer.0", "layer.1"]
    assert graph.meta["source"] == LlamaConfig.SOURCE and build(GEMMA3).meta["source"] == Gemma3Config.SOURCE
    assert build(QWEN3).meta["source"] == Qwen3Config.SOURCE

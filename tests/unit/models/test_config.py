"""Configurations from config.json: every architecture, both rope forms, and refusals by name."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import AutoConfig

from forerun.models import ModelConfig, ModelError, RopeConfig
from forerun.models.config import config_from_hugging_face
from tests.fixtures.tiny import tiny_config


def parse(config: dict[str, Any], generation_config: dict[str, Any] | None = None) -> ModelConfig:
    return config_from_hugging_face(config, generation_config or {}, "some-model")


@pytest.mark.parametrize(
    ("architecture", "attention_bias", "qk_norm", "window"),
    [
        ("llama", False, False, None),
        ("qwen2", True, False, None),
        ("qwen3", False, True, None),
        ("mistral", False, False, 16),
    ],
)
def test_each_architecture(
    architecture: str, attention_bias: bool, qk_norm: bool, window: int | None
) -> None:
    config = parse(tiny_config(architecture))
    assert config.architecture == architecture
    assert (config.hidden_size, config.intermediate_size, config.num_layers) == (64, 128, 2)
    assert (config.num_heads, config.num_kv_heads, config.head_dim) == (4, 1, 16)
    assert config.attention_bias is attention_bias
    assert config.output_bias is False
    assert config.qk_norm is qk_norm
    assert config.sliding_window == window
    assert config.eos_token_ids == (257,)
    assert config.bos_token_id == 256
    assert config.tie_word_embeddings


def test_llama_biases() -> None:
    config = parse(tiny_config(attention_bias=True, mlp_bias=True))
    assert config.attention_bias and config.output_bias and config.mlp_bias


def test_qwen3_attention_bias_is_on_every_projection() -> None:
    config = parse(tiny_config("qwen3", attention_bias=True))
    assert config.attention_bias and config.output_bias and not config.mlp_bias


@pytest.mark.parametrize(
    ("key", "value"),
    [("eos_token_id", 99999), ("eos_token_id", [257, 260]), ("max_position_embeddings", 1)],
)
def test_what_no_generation_could_run_with_is_refused(key: str, value: object) -> None:
    with pytest.raises(ModelError, match=f"{key} is "):
        parse(tiny_config(**{key: value}))


def test_generation_config_may_not_end_with_an_unknown_id() -> None:
    with pytest.raises(ModelError, match=r"eos_token_id is 5000; .* 0 to 259"):
        parse(tiny_config(), {"eos_token_id": 5000})


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3", "mistral"])
def test_absent_keys_mean_what_they_mean_to_transformers(architecture: str) -> None:
    optional = "num_key_value_heads head_dim rms_norm_eps rope_parameters sliding_window".split()
    optional += ["tie_word_embeddings", "hidden_act"]
    small = {"num_attention_heads": 32, "hidden_size": 2048}
    raw = {k: v for k, v in tiny_config(architecture, **small).items() if k not in optional}
    theirs = AutoConfig.for_model(**raw)
    ours = parse(raw)
    head_dim = getattr(theirs, "head_dim", None) or 2048 // 32
    assert (ours.num_kv_heads, ours.head_dim) == (theirs.num_key_value_heads, head_dim)
    assert ours.rms_norm_eps == theirs.rms_norm_eps
    assert ours.rope == RopeConfig(theta=theirs.rope_parameters["rope_theta"])
    assert ours.tie_word_embeddings == theirs.tie_word_embeddings
    assert ours.sliding_window == getattr(theirs, "sliding_window", None)


LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
LLAMA3_CONFIG = RopeConfig(
    theta=500_000.0,
    type="llama3",
    factor=8.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_positions=8192,
)


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ({"rope_theta": 5e5}, RopeConfig(theta=5e5)),
        ({"rope_theta": 5e5, "rope_scaling": None}, RopeConfig(theta=5e5)),
        ({"rope_theta": 1e6, "rope_parameters": None}, RopeConfig(theta=1e6)),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}, RopeConfig(theta=5e5)),
        (
            {"rope_theta": 1e4, "rope_scaling": {"type": "linear", "factor": 2}},
            RopeConfig(theta=1e4, type="linear", factor=2.0),
        ),
        (
            {"rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", **LLAMA3}},
            LLAMA3_CONFIG,
        ),
        ({"rope_theta": 5e5, "rope_scaling": {"type": "llama3", **LLAMA3}}, LLAMA3_CONFIG),
        (
            {"rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5, **LLAMA3}},
            LLAMA3_CONFIG,
        ),
    ],
)
def test_rope_in_both_forms(overrides: dict[str, Any], expected: RopeConfig) -> None:
    assert parse(tiny_config(**overrides)).rope == expected


@pytest.mark.parametrize("rope_type", ["dynamic", "yarn", "longrope", "mrope", "new-one"])
@pytest.mark.parametrize("key", ["type", "rope_type"])
def test_other_rope_types_are_refused_by_name(rope_type: str, key: str) -> None:
    config = tiny_config(rope_theta=1e4, rope_scaling={key: rope_type, "factor": 2.0})
    with pytest.raises(ModelError, match=rope_type):
        parse(config)


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        ({"model_type": "gpt_neox"}, "gpt_neox"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"quantization_config": {"quant_method": "gptq"}}, "gptq"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}}, "partial_rotary"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1e4}}}, "full_attention"),
        ({"rope_theta": 1e4, "rope_scaling": {"type": "linear"}}, "factor is missing"),
        ({"rope_theta": 1e4, "rope_scaling": "linear"}, "rope_scaling"),
        ({"hidden_size": None}, "hidden_size"),
        ({"num_hidden_layers": 0}, "num_hidden_layers"),
        ({"num_hidden_layers": "2"}, "num_hidden_layers"),
        ({"vocab_size": 2**40}, "vocab_size"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings"),
        ({"eos_token_id": "</s>"}, "eos_token_id"),
        ({"num_attention_heads": 4, "num_key_value_heads": 3}, "3 key-value heads"),
        ({"head_dim": 15}, "head_dim 15"),
    ],
)
def test_what_cannot_be_computed_is_refused_by_name(overrides: dict[str, Any], named: str) -> None:
    with pytest.raises(ModelError, match=named):
        parse(tiny_config(**overrides))


def test_llama3_factors_must_be_in_order() -> None:
    rope = {"rope_type": "llama3", **LLAMA3, "low_freq_factor": 4.0}
    with pytest.raises(ModelError, match="low_freq_factor"):
        parse(tiny_config(rope_theta=1e4, rope_scaling=rope))


@pytest.mark.parametrize("architecture", ["qwen2", "qwen3"])
class TestQwenSlidingWindow:
    def window(self, architecture: str, **overrides: Any) -> int | None:
        settings = {"sliding_window": 8, "max_position_embeddings": 64} | overrides
        return parse(tiny_config(architecture, **settings)).sliding_window

    def test_is_off_unless_used(self, architecture: str) -> None:
        assert self.window(architecture, use_sliding_window=False, max_window_layers=0) is None

    def test_of_no_layer_is_none(self, architecture: str) -> None:
        assert self.window(architecture, use_sliding_window=True, max_window_layers=2) is None

    def test_of_every_layer_applies(self, architecture: str) -> None:
        assert self.window(architecture, use_sliding_window=True, max_window_layers=0) == 8

    def test_of_some_layers_is_refused(self, architecture: str) -> None:
        with pytest.raises(ModelError, match="max_window_layers 1"):
            self.window(architecture, use_sliding_window=True, max_window_layers=1)

    def test_longer_than_the_context_never_applies(self, architecture: str) -> None:
        wide = {"use_sliding_window": True, "max_window_layers": 1, "sliding_window": 64}
        assert self.window(architecture, **wide) is None

    def test_by_layer_types(self, architecture: str) -> None:
        mixed = ["full_attention", "sliding_attention"]
        with pytest.raises(ModelError, match="1 of 2 layers"):
            self.window(architecture, use_sliding_window=True, layer_types=mixed)


def test_layer_types_must_cover_the_layers() -> None:
    settings = {"use_sliding_window": True, "layer_types": ["full_attention"]}
    with pytest.raises(ModelError, match="layer_types"):
        parse(tiny_config("qwen3", **settings))


def test_mistral_without_a_window() -> None:
    assert parse(tiny_config("mistral", sliding_window=None)).sliding_window is None


def test_eos_ids_come_from_both_files() -> None:
    config = tiny_config(eos_token_id=[5, 7])
    assert parse(config, {"eos_token_id": 9}).eos_token_ids == (5, 7, 9)
    assert parse(config, {"eos_token_id": [7, 3]}).eos_token_ids == (5, 7, 3)
    assert parse(tiny_config(eos_token_id=None)).eos_token_ids == ()

"""Owns the shape of a decoder and its reading from config.json; knows nothing about weights.

Keys and defaults are those of Transformers' configuration classes, in the form of version 4
(`rope_theta` beside `rope_scaling`) and of version 5 (`rope_parameters`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

from forerun.models.errors import ModelError
from forerun.models.fields import Fields
from forerun.models.rope import ROPE_TYPES, RopeConfig, RopeType

Architecture = Literal["llama", "qwen2", "qwen3", "mistral"]
ARCHITECTURES: tuple[str, ...] = get_args(Architecture)
# Of these a `model_type` is another name: MiMo is Qwen2 with a layer for multi-token prediction.
_SAME_AS = {"mimo": "qwen2"}


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A pre-norm decoder with RMSNorm, rotary grouped-query attention and a SiLU-gated MLP.

    vocab_size: rows of the embedding (a tokenizer may have fewer entries). head_dim: even.
    num_heads is a multiple of num_kv_heads. max_positions: the longest context the weights were
    made for. attention_bias: biases on q, k and v; output_bias: on o; mlp_bias: on gate, up, down.
    qk_norm: an RMSNorm over head_dim on every q and k head before the rotation.
    num_mtp_layers: layers for multi-token prediction behind the model's own, which it runs without.
    sliding_window W: position i sees j with i - j < W, in every layer; None: all earlier positions.
    """

    architecture: Architecture
    name: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope: RopeConfig
    max_positions: int
    tie_word_embeddings: bool
    attention_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    sliding_window: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    bos_token_id: int | None = None
    num_mtp_layers: int = 0

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise ModelError(
                f"{self.name}: {self.num_heads} attention heads are not a multiple of "
                f"{self.num_kv_heads} key-value heads"
            )
        for token_id in self.eos_token_ids:
            if token_id >= self.vocab_size:
                raise ModelError(
                    f"{self.name}: eos_token_id is {token_id}; expected an id of the vocabulary, "
                    f"0 to {self.vocab_size - 1}"
                )
        if self.head_dim % 2:
            raise ModelError(f"{self.name}: head_dim {self.head_dim} is odd; rotation needs pairs")
        if self.rope.divisors is not None and len(self.rope.divisors) != self.head_dim // 2:
            raise ModelError(
                f"{self.name}: {len(self.rope.divisors)} rope frequency divisors; "
                f"expected {self.head_dim // 2} for head_dim {self.head_dim}"
            )


def checked_architecture(architecture: str, source: str) -> Architecture:
    """Return `architecture` if forerun computes it; otherwise refuse it by name."""
    if architecture not in ARCHITECTURES:
        raise ModelError(
            f"{source}: architecture {architecture!r} is not supported; "
            f"supported: {', '.join(ARCHITECTURES)}"
        )
    return cast(Architecture, architecture)


def config_from_hugging_face(
    config: Mapping[str, Any], generation_config: Mapping[str, Any], name: str
) -> ModelConfig:
    """Build the configuration from a parsed config.json and generation_config.json (or {}).

    Raises ModelError for an architecture, activation, rope type or per-layer window that forerun
    does not compute, and for a missing or malformed key.
    """
    fields = Fields(config, f"{name}/config.json")
    model_type = fields.text("model_type")
    architecture = checked_architecture(_SAME_AS.get(model_type, model_type), fields.source)
    _refuse_unsupported(fields)
    num_heads = fields.integer("num_attention_heads")
    hidden_size = fields.integer("hidden_size")
    # Transformers' classes differ in what an absent key means.
    default_kv_heads = {"llama": num_heads, "mistral": 8}.get(architecture, 32)
    default_head_dim = 128 if architecture == "qwen3" else max(hidden_size // num_heads, 1)
    num_layers = fields.integer("num_hidden_layers")
    max_positions = fields.integer("max_position_embeddings", 2048, minimum=2)
    has_bias = architecture in ("llama", "qwen3") and fields.flag("attention_bias", False)
    return ModelConfig(
        architecture=architecture,
        name=name,
        vocab_size=fields.integer("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=fields.integer("intermediate_size"),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=fields.integer("num_key_value_heads", default_kv_heads),
        head_dim=fields.integer("head_dim", default_head_dim),
        rms_norm_eps=fields.number("rms_norm_eps", 1e-6),
        rope=rope_from_fields(fields, max_positions),
        max_positions=max_positions,
        tie_word_embeddings=fields.flag("tie_word_embeddings", False),
        attention_bias=has_bias or architecture == "qwen2",
        output_bias=has_bias,
        mlp_bias=architecture == "llama" and fields.flag("mlp_bias", False),
        qk_norm=architecture == "qwen3",
        sliding_window=_sliding_window(fields, architecture, num_layers, max_positions),
        eos_token_ids=eos_token_ids(fields, Fields(generation_config, "generation_config.json")),
        bos_token_id=fields.integer("bos_token_id", minimum=0)
        if fields.has("bos_token_id")
        else None,
        num_mtp_layers=fields.integer("num_nextn_predict_layers", 0, minimum=0),
    )


def eos_token_ids(config: Fields, generation_config: Fields) -> tuple[int, ...]:
    """Return the ids that end a generation, those of config.json first, without repeats."""
    ids = config.token_ids("eos_token_id") + generation_config.token_ids("eos_token_id")
    return tuple(dict.fromkeys(ids))


def _refuse_unsupported(fields: Fields) -> None:
    activation = fields.text("hidden_act", "silu")
    if activation != "silu":
        raise fields.error("hidden_act", activation, "'silu'")
    if fields.has("quantization_config"):
        method = fields.table["quantization_config"]
        method = method.get("quant_method") if isinstance(method, dict) else method
        raise fields.error("quantization_config", method, "no quantisation (or a GGUF file)")


def rope_from_fields(fields: Fields, max_positions: int) -> RopeConfig:
    """The rotation of a parsed config.json. Raises ModelError for a type that is not computed."""
    for key in ("rope_parameters", "rope_scaling"):
        if fields.has(key) and not isinstance(fields.table[key], dict):
            raise fields.error(key, fields.table[key], "an object")
    merged = {
        **(fields.table.get("rope_scaling") or {}),
        **(fields.table.get("rope_parameters") or {}),
    }
    rope = Fields(merged, f"{fields.source}: rope parameters")
    for key, value in merged.items():
        if isinstance(value, dict):
            raise rope.error(key, value, "one set of parameters for all layers")
    rope_type = rope.text("rope_type", rope.text("type", "default"))
    if rope_type not in ROPE_TYPES:
        raise rope.error("rope_type", rope_type, f"one of {', '.join(ROPE_TYPES)}")
    for holder in (fields, rope):
        if holder.number("partial_rotary_factor", 1.0) != 1.0:
            value = holder.table["partial_rotary_factor"]
            raise holder.error("partial_rotary_factor", value, "1.0 (every dimension rotated)")
    theta = rope.number("rope_theta", fields.number("rope_theta", 10_000.0))
    if rope_type == "default":
        return RopeConfig(theta=theta)
    if rope_type == "linear":
        return RopeConfig(theta=theta, type="linear", factor=rope.number("factor"))
    original = fields.integer(
        "original_max_position_embeddings",
        rope.integer("original_max_position_embeddings", max_positions),
    )
    low, high = rope.number("low_freq_factor"), rope.number("high_freq_factor")
    if low >= high:
        raise rope.error("low_freq_factor", low, f"less than high_freq_factor ({high})")
    return RopeConfig(
        theta=theta,
        type=cast(RopeType, rope_type),
        factor=rope.number("factor"),
        low_freq_factor=low,
        high_freq_factor=high,
        original_max_positions=original,
    )


def _sliding_window(
    fields: Fields, architecture: str, num_layers: int, max_positions: int
) -> int | None:
    """Return the window of all layers; refuse one that really applies to a part of them."""
    if architecture == "llama":
        return None
    if architecture == "mistral":
        # An explicit null means full attention, an absent key the 4096 of the first release.
        if "sliding_window" in fields.table and not fields.has("sliding_window"):
            return None
        return fields.integer("sliding_window", 4096)
    if not fields.flag("use_sliding_window", False):
        return None
    window = fields.integer("sliding_window", 4096)
    first = fields.integer("max_window_layers", 28, minimum=0)
    layer_types = fields.table.get("layer_types")
    if layer_types is None:
        num_sliding = max(num_layers - first, 0)
    elif isinstance(layer_types, list) and len(layer_types) == num_layers:
        num_sliding = layer_types.count("sliding_attention")
    else:
        raise fields.error("layer_types", layer_types, f"a list of {num_layers} names")
    if num_sliding == 0 or window >= max_positions:
        return None
    if num_sliding < num_layers:
        raise fields.error(
            "use_sliding_window",
            True,
            f"a window on all layers or none; with max_window_layers {first} the window of "
            f"{window} applies to {num_sliding} of {num_layers} layers",
        )
    return window

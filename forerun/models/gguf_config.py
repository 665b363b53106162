"""Owns the reading of a model's shape from GGUF metadata and the names of GGUF tensors."""

from __future__ import annotations

import re

import numpy as np

from forerun.models.config import ModelConfig, checked_architecture
from forerun.models.errors import ModelError
from forerun.models.fields import Fields
from forerun.models.gguf_file import GgufFile
from forerun.models.rope import RopeConfig

ROPE_DIVISORS = "rope_freqs.weight"

_TOP_LEVEL = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_IN_LAYER = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_LAYER_NAME = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")
# The stored end-of-turn and end-of-message ids end a generation as the end of text does.
_EOS_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")


def canonical_name(gguf_name: str) -> str:
    """Return the Hugging Face name of a GGUF tensor, or the name itself if it has none."""
    if gguf_name in _TOP_LEVEL:
        return _TOP_LEVEL[gguf_name]
    match = _LAYER_NAME.fullmatch(gguf_name)
    if match is None or match[2] not in _IN_LAYER:
        return gguf_name
    return f"model.layers.{int(match[1])}.{_IN_LAYER[match[2]]}.{match[3]}"


def config_from_gguf(file: GgufFile) -> ModelConfig:
    """Build the configuration from metadata, and from the presence of tensors where it says
    nothing (biases, an own head).

    A file of architecture `llama` may hold a Mistral model; the two differ in the sliding window
    alone. Raises ModelError as `config_from_hugging_face` does.
    """
    fields = Fields(file.metadata, str(file.path))
    if fields.has("split.count") and fields.integer("split.count", minimum=0) > 1:
        raise fields.error("split.count", fields.table["split.count"], "1: merge the parts first")
    architecture = checked_architecture(fields.text("general.architecture"), fields.source)
    if architecture == "mistral":
        raise fields.error("general.architecture", architecture, "'llama', as converters write it")
    model = Fields(
        {
            key.removeprefix(f"{architecture}."): value
            for key, value in file.metadata.items()
            if key.startswith(f"{architecture}.")
        },
        f"{file.path}: {architecture}",
    )
    if model.has("expert_count") and model.integer("expert_count", minimum=0) > 0:
        raise model.error("expert_count", model.table["expert_count"], "no experts (a dense model)")
    if "token_embd.weight" not in file.tensors:
        raise ModelError(f"{file.path}: missing tensor token_embd.weight")
    num_heads = model.integer("attention.head_count")
    hidden_size = model.integer("embedding_length")
    head_dim = model.integer("attention.key_length", max(hidden_size // num_heads, 1))
    for key in ("attention.value_length", "rope.dimension_count"):
        if model.integer(key, head_dim) != head_dim:
            raise model.error(key, model.table[key], f"the key length, {head_dim}")
    max_positions = model.integer("context_length", minimum=2)
    bos_ids = fields.token_ids("tokenizer.ggml.bos_token_id")
    return ModelConfig(
        architecture=architecture,
        name=file.path.stem,
        vocab_size=file.tensors["token_embd.weight"].shape[0],
        hidden_size=hidden_size,
        intermediate_size=model.integer("feed_forward_length"),
        num_layers=model.integer("block_count"),
        num_heads=num_heads,
        num_kv_heads=model.integer("attention.head_count_kv", num_heads),
        head_dim=head_dim,
        rms_norm_eps=_shortest_float(model.number("attention.layer_norm_rms_epsilon")),
        rope=_rope(file, model, max_positions),
        max_positions=max_positions,
        tie_word_embeddings="output.weight" not in file.tensors,
        attention_bias=architecture == "qwen2" or "blk.0.attn_q.bias" in file.tensors,
        output_bias="blk.0.attn_output.bias" in file.tensors,
        mlp_bias="blk.0.ffn_up.bias" in file.tensors,
        qk_norm=architecture == "qwen3",
        sliding_window=_sliding_window(model, architecture, max_positions),
        eos_token_ids=gguf_eos_token_ids(fields),
        bos_token_id=bos_ids[0] if bos_ids else None,
    )


def gguf_eos_token_ids(metadata: Fields) -> tuple[int, ...]:
    """Return the ids that end a generation, by the metadata of a whole file."""
    ids = [i for key in _EOS_KEYS for i in metadata.token_ids(f"tokenizer.ggml.{key}")]
    return tuple(dict.fromkeys(ids))


def _rope(file: GgufFile, model: Fields, max_positions: int) -> RopeConfig:
    theta = _shortest_float(model.number("rope.freq_base", 10_000.0))
    divisors = file.tensors.get(ROPE_DIVISORS)
    scaling = model.text(
        "rope.scaling.type", "linear" if model.has("rope.scale_linear") else "none"
    )
    if scaling not in ("none", "linear"):
        raise model.error("rope.scaling.type", scaling, "none or linear")
    factor = model.number("rope.scaling.factor", model.number("rope.scale_linear", 1.0))
    if divisors is not None:
        if scaling == "linear" and factor != 1.0:
            raise model.error("rope.scaling.type", scaling, f"none beside {ROPE_DIVISORS}")
        if divisors.type.name != "F32" or len(divisors.shape) != 1:
            raise ModelError(
                f"{file.path}: tensor {ROPE_DIVISORS} has type {divisors.type.name} and shape "
                f"{divisors.shape}; expected a vector of F32"
            )
        values = file.read_rows(divisors, 0, divisors.shape[0]).view(np.float32).ravel()
        if not (np.isfinite(values).all() and (values > 0).all()):
            raise ModelError(f"{file.path}: tensor {ROPE_DIVISORS} holds values that are not > 0")
        return RopeConfig(
            theta=theta,
            type="llama3",
            original_max_positions=max_positions,
            divisors=tuple(values.tolist()),
        )
    if scaling == "linear" and factor != 1.0:
        return RopeConfig(theta=theta, type="linear", factor=_shortest_float(factor))
    return RopeConfig(theta=theta)


def _sliding_window(model: Fields, architecture: str, max_positions: int) -> int | None:
    key = "attention.sliding_window"
    window = model.integer(key, minimum=0) if model.has(key) else 0
    if window == 0 or window >= max_positions:
        return None
    if architecture != "llama":
        raise model.error(
            key, window, f"no window for {architecture}, whose layers may differ in it"
        )
    return window


def _shortest_float(value: float) -> float:
    """Return the shortest decimal that rounds to the same float32, as config.json would say it."""
    return float(str(np.float32(value)))

"""Owns which tensors an architecture needs, under their canonical (Hugging Face) names."""

from __future__ import annotations

from collections.abc import Mapping

from forerun.models.config import ModelConfig
from forerun.models.errors import ModelError

Shapes = dict[str, tuple[int, ...]]

# Where MiMo keeps its layers for multi-token prediction; other models number them as layers.
MIMO_LAYERS = "model.mtp_layers."


def expected_shapes(config: ModelConfig) -> Shapes:
    """Return name → shape, output dimension first, of every tensor the forward pass reads.

    A tied head is absent: the embedding serves as the head.
    """
    hidden, inner = config.hidden_size, config.intermediate_size
    q_rows, kv_rows = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    shapes: Shapes = {"model.embed_tokens.weight": (config.vocab_size, hidden)}
    linears = (
        ("self_attn.q_proj", q_rows, hidden, config.attention_bias),
        ("self_attn.k_proj", kv_rows, hidden, config.attention_bias),
        ("self_attn.v_proj", kv_rows, hidden, config.attention_bias),
        ("self_attn.o_proj", hidden, q_rows, config.output_bias),
        ("mlp.gate_proj", inner, hidden, config.mlp_bias),
        ("mlp.up_proj", inner, hidden, config.mlp_bias),
        ("mlp.down_proj", hidden, inner, config.mlp_bias),
    )
    for layer in range(config.num_layers):
        prefix = f"model.layers.{layer}."
        shapes[f"{prefix}input_layernorm.weight"] = (hidden,)
        shapes[f"{prefix}post_attention_layernorm.weight"] = (hidden,)
        for name, rows, columns, has_bias in linears:
            shapes[f"{prefix}{name}.weight"] = (rows, columns)
            if has_bias:
                shapes[f"{prefix}{name}.bias"] = (rows,)
        if config.qk_norm:
            shapes[f"{prefix}self_attn.q_norm.weight"] = (config.head_dim,)
            shapes[f"{prefix}self_attn.k_norm.weight"] = (config.head_dim,)
    shapes["model.norm.weight"] = (hidden,)
    if not config.tie_word_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, hidden)
    return shapes


def check_tensor_set(found: Mapping[str, tuple[int, ...]], config: ModelConfig) -> Shapes:
    """Return the shapes to serve, after comparing what a file holds with what is needed.

    Layers for multi-token prediction are a drafter's concern. Two kinds of surplus are known to be
    harmless and dropped: `*.rotary_emb.inv_freq`, a buffer
    that old checkpoints saved and that the configuration defines anew, and `lm_head.weight` of the
    embedding's shape when the configuration ties the two. Anything else missing, extra or
    misshapen raises ModelError with the tensor, its shape and the expected shape.
    """
    # A forged layer count must not become a table of billions of names.
    if config.num_layers > len(found):
        raise ModelError(
            f"{config.name}: {len(found)} tensors for {config.num_layers} layers; missing tensor "
            f"model.layers.{config.num_layers - 1}.input_layernorm.weight among others"
        )
    expected = expected_shapes(config)
    behind = range(config.num_layers, config.num_layers + min(config.num_mtp_layers, len(found)))
    drafting = (*(f"model.layers.{layer}." for layer in behind), *([MIMO_LAYERS] if behind else []))
    surplus = {
        name: shape
        for name, shape in found.items()
        if name not in expected and not name.startswith(drafting)
    }
    for name, shape in surplus.items():
        is_tied_head = name == "lm_head.weight" and shape == expected["model.embed_tokens.weight"]
        if not (is_tied_head or name.endswith("rotary_emb.inv_freq")):
            raise ModelError(
                f"{config.name}: unexpected tensor {name} of shape {shape}; "
                f"expected no such tensor in a {config.architecture} model of this configuration"
            )
    for name, shape in expected.items():
        if name not in found:
            raise ModelError(
                f"{config.name}: missing tensor {name}; expected shape {shape}. "
                "The checkpoint is incomplete or its configuration belongs to another model"
            )
        if found[name] != shape:
            raise ModelError(
                f"{config.name}: tensor {name} has shape {found[name]}; expected {shape}"
            )
    return expected

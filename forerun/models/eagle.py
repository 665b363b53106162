"""Owns reading an EAGLE-1 or -2 draft head as published: config.json and one safetensors file.

Both releases share the head (arXiv:2401.15077, 2406.16858): `fc` joins the embedding and what
leaves the target's final norm, one decoder layer without an input norm follows, and the target's
own head tells the token. EAGLE-2 differs in the tree alone.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from forerun.models.config import ModelConfig, rope_from_fields
from forerun.models.draft_head import HeadCheckpoint, HeadConfig, check_tensors
from forerun.models.fields import Fields
from forerun.models.json_object import read_json_object
from forerun.models.safetensors_folder import SafetensorsFolder

LAYER = "layers.0."
NAMES = {
    "fc": "fc.weight",
    "fc_bias": "fc.bias",
    **{part: f"{LAYER}self_attn.{part}_proj.weight" for part in ("q", "k", "v", "o")},
    **{f"{part}_bias": f"{LAYER}self_attn.{part}_proj.bias" for part in ("q", "k", "v")},
    "mlp_norm": f"{LAYER}post_attention_layernorm.weight",
    **{part: f"{LAYER}mlp.{part}_proj.weight" for part in ("gate", "up", "down")},
    "embedding": "embed_tokens.weight",
}
BIASES = ("q_bias", "k_bias", "v_bias")


class EagleCheckpoint(HeadCheckpoint):
    """An open head that was checked against its target, whose head it uses, and whose embedding
    where it has none of its own.

    Raises ModelError that names the key or the tensor that is missing, unknown, misshapen, or made
    for another target.
    """

    def __init__(self, directory: Path, target: ModelConfig) -> None:
        fields = Fields(read_json_object(directory / "config.json"), f"{directory}/config.json")
        config = _config(fields, directory.resolve().name, target)
        folder = SafetensorsFolder(directory)
        biased = fields.flag("qkv_bias", False)
        names = check_tensors(
            directory,
            folder.shapes,
            {part: name for part, name in NAMES.items() if biased or part not in BIASES},
            config,
            optional=("fc_bias", "embedding"),
            kind="an EAGLE head",
        )
        ids = np.arange(config.vocab_size, dtype=np.int32)
        super().__init__(config, target, folder, names, ids)


def _config(fields: Fields, name: str, target: ModelConfig) -> HeadConfig:
    layers = fields.integer("num_hidden_layers", 1)
    if layers != 1:
        raise fields.error("num_hidden_layers", layers, "1, the single layer of an EAGLE head")
    for key, wanted in (("vocab_size", target.vocab_size), ("hidden_size", target.hidden_size)):
        found = fields.integer(key)
        if found != wanted:
            raise fields.error(key, found, f"{wanted}, as of {target.name}")
    num_heads = fields.integer("num_attention_heads")
    max_positions = fields.integer("max_position_embeddings", 2048)
    return HeadConfig(
        name=name,
        hidden_size=target.hidden_size,
        intermediate_size=fields.integer("intermediate_size"),
        num_heads=num_heads,
        num_kv_heads=fields.integer("num_key_value_heads", num_heads),
        head_dim=fields.integer("head_dim", max(target.hidden_size // num_heads, 1)),
        rms_norm_eps=fields.number("rms_norm_eps", 1e-6),
        rope=rope_from_fields(fields, max_positions),
        max_positions=max_positions,
        vocab_size=target.vocab_size,
        draft_vocab_size=target.vocab_size,
        taps=(target.num_layers,),
        target_hidden_size=target.hidden_size,
        fused=True,
    )

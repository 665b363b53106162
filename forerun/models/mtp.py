"""Owns reading a layer for multi-token prediction: of the checkpoint that brings it for its own
model, or of a folder that holds it alone.

Two namings of one form (arXiv:2412.19437): MiMo's `model.mtp_layers.0`, and NextN's extra layer
behind the last one. The embedding and what leaves the target's final norm are normed, joined and
projected; one decoder layer like the target's own follows, then a norm and a head, which is the
target's unless the layer has one.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from forerun.models.config import ModelConfig
from forerun.models.draft_head import (
    HeadCheckpoint,
    HeadConfig,
    bias_names,
    check_tensors,
    layer_names,
)
from forerun.models.errors import ModelError
from forerun.models.fields import Fields
from forerun.models.json_object import read_json_object
from forerun.models.safetensors_folder import SafetensorsFolder
from forerun.models.tensor_set import MIMO_LAYERS

_MIMO = {
    "embedding_norm": "token_layernorm",
    "hidden_norm": "hidden_layernorm",
    "fc": "input_proj",
    "layer_norm": "input_layernorm",
    "final_norm": "final_layernorm",
}
_NEXTN = {
    "embedding_norm": "enorm",
    "hidden_norm": "hnorm",
    "fc": "eh_proj",
    "layer_norm": "input_layernorm",
    "final_norm": "shared_head.norm",
    "head": "shared_head.head",
    "embedding": "embed_tokens",
}


class MtpCheckpoint(HeadCheckpoint):
    """The first of the layers in a safetensors folder, which is that of the target, or holds layers
    for it alone.

    Raises ModelError where there is none, or for a tensor that is missing, unknown or misshapen.
    """

    def __init__(self, directory: Path, target: ModelConfig) -> None:
        _check_holder(directory, target)
        config, folder = layer_of(target), SafetensorsFolder(directory)
        mimo = any(name.startswith(MIMO_LAYERS) for name in folder.shapes)
        prefix = f"{MIMO_LAYERS}0." if mimo else f"model.layers.{target.num_layers}."
        parts = _MIMO if mimo else _NEXTN
        names = {part: f"{prefix}{name}.weight" for part, name in parts.items()}
        biases = bias_names(prefix) if target.attention_bias else {}
        names = check_tensors(
            directory,
            folder.shapes,
            names | layer_names(prefix) | biases,
            config,
            optional=("head", "embedding"),
            prefix=prefix,
            kind="a layer for multi-token prediction",
        )
        ids = np.arange(config.vocab_size, dtype=np.int32)
        super().__init__(config, target, folder, names, ids, hidden_first=mimo)


def _check_holder(directory: Path, target: ModelConfig) -> None:
    path = directory / "config.json"
    fields = Fields(read_json_object(path, optional=True), str(path))
    if not fields.integer("num_nextn_predict_layers", 0, minimum=0):
        raise ModelError(
            f"{directory}: has no layer for multi-token prediction (num_nextn_predict_layers in"
            " config.json); name the folder of one with --draft-model, or draft by another method"
        )
    for key in ("hidden_size", "vocab_size"):
        if fields.integer(key) != getattr(target, key):
            found, wanted = fields.integer(key), getattr(target, key)
            raise fields.error(key, found, f"{wanted}, as of {target.name}")


def layer_of(target: ModelConfig) -> HeadConfig:
    """The layer that fits a model. Raises ModelError where it would be one that is not computed."""
    if target.qk_norm or target.output_bias or target.sliding_window is not None:
        raise ModelError(
            f"{target.name}: its layer for multi-token prediction has norms of queries and keys, a"
            " bias behind attention or a window, which drafting does not compute; draft by another"
            " method"
        )
    return HeadConfig(
        name=target.name,
        hidden_size=target.hidden_size,
        intermediate_size=target.intermediate_size,
        num_heads=target.num_heads,
        num_kv_heads=target.num_kv_heads,
        head_dim=target.head_dim,
        rms_norm_eps=target.rms_norm_eps,
        rope=target.rope,
        max_positions=target.max_positions,
        vocab_size=target.vocab_size,
        draft_vocab_size=target.vocab_size,
        taps=(target.num_layers,),
        target_hidden_size=target.hidden_size,
        fused=True,
        passes_norm=True,
    )

"""Owns reading the multi-token prediction layer that a checkpoint brings for its own model.

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
    """The first of the layers in a safetensors folder whose model is `target`.

    Raises ModelError where there is none, or for a tensor that is missing, unknown or misshapen.
    """

    def __init__(self, directory: Path, target: ModelConfig) -> None:
        if not target.num_mtp_layers or not directory.is_dir():
            raise ModelError(
                f"{directory}: has no layer for multi-token prediction (num_nextn_predict_layers in"
                " config.json); draft by another method"
            )
        config, folder = _config(target), SafetensorsFolder(directory)
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


def _config(target: ModelConfig) -> HeadConfig:
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

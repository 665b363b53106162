"""Owns reading an EAGLE-1 or -2 draft head as published: config.json and one safetensors file.

Both releases share the head (arXiv:2401.15077, 2406.16858): `fc` joins the embedding and what
leaves the target's final norm, one decoder layer without an input norm follows, and the target's
own head tells the token. EAGLE-2 differs in the tree alone.
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
    config_from_fields,
    layer_names,
)
from forerun.models.fields import Fields
from forerun.models.json_object import read_json_object
from forerun.models.safetensors_folder import SafetensorsFolder

LAYER = "layers.0."
NAMES = {
    "fc": "fc.weight",
    "fc_bias": "fc.bias",
    **layer_names(LAYER),
    "embedding": "embed_tokens.weight",
}


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
        biases = bias_names(LAYER) if fields.flag("qkv_bias", False) else {}
        names = check_tensors(
            directory,
            folder.shapes,
            NAMES | biases,
            config,
            optional=("fc_bias", "embedding"),
            kind="an EAGLE head",
        )
        ids = np.arange(config.vocab_size, dtype=np.int32)
        super().__init__(config, target, folder, names, ids)


def _config(fields: Fields, name: str, target: ModelConfig) -> HeadConfig:
    hidden_size = fields.integer("hidden_size")
    if hidden_size != target.hidden_size:
        raise fields.error("hidden_size", hidden_size, f"{target.hidden_size}, as of {target.name}")
    return config_from_fields(
        fields,
        target,
        name=name,
        hidden_size=hidden_size,
        draft_vocab_size=target.vocab_size,
        taps=(target.num_layers,),
        fused=True,
    )

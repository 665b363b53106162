"""Owns reading an EAGLE-3 draft head as published: config.json and one safetensors file.

Names and shapes are those of the first release (arXiv:2503.01840): one `midlayer`, `fc` over the
target's hidden states, a head over a draft vocabulary, `d2t` from a draft id to how far the
target's id lies behind it. The `speculators` layout calls the layer `layers.0`, keeps its shape in
`transformer_layer_config`, and adds what it norms to the residual unless it says otherwise.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from forerun.models.config import ModelConfig
from forerun.models.draft_head import (
    HeadCheckpoint,
    HeadConfig,
    check_tensors,
    config_from_fields,
    layer_names,
)
from forerun.models.errors import ModelError
from forerun.models.fields import Fields
from forerun.models.json_object import read_json_object
from forerun.models.safetensors_folder import SafetensorsFolder

EMBEDDING = "embed_tokens.weight"

_SPECULATORS = "transformer_layer_config"


def default_taps(num_layers: int) -> tuple[int, int, int]:
    """The layers of a target whose inputs a head reads if it names none: those of the first
    release. They differ in a target of 7 layers or more."""
    return (2, num_layers // 2, num_layers - 3)


class Eagle3Checkpoint(HeadCheckpoint):
    """An open head that was checked against its target; without an embedding of its own it uses
    the target's.

    Raises ModelError that names the key or the tensor that is missing, unknown, misshapen, or made
    for another target.
    """

    def __init__(self, directory: Path, target: ModelConfig) -> None:
        fields = Fields(read_json_object(directory / "config.json"), f"{directory}/config.json")
        config = _config(fields, directory.resolve().name, target)
        folder = SafetensorsFolder(directory)
        if EMBEDDING not in folder.shapes and config.hidden_size != target.hidden_size:
            raise ModelError(
                f"{directory}: {EMBEDDING} is missing, and the target's cannot stand in: its rows "
                f"have {target.hidden_size} elements, those of the head {config.hidden_size}"
            )
        names = check_tensors(
            directory,
            folder.shapes,
            _names("layers.0." if fields.has(_SPECULATORS) else "midlayer."),
            config,
            optional=("embedding",),
            others={"d2t": (config.draft_vocab_size,), "t2d": (config.vocab_size,)},
            kind="an EAGLE-3 head",
        )
        super().__init__(config, target, folder, names, _draft_ids(directory, folder, config))


def _names(layer: str) -> dict[str, str]:
    return {
        "fc": "fc.weight",
        "embedding_norm": f"{layer}input_layernorm.weight",
        "hidden_norm": f"{layer}hidden_norm.weight",
        **layer_names(layer),
        "final_norm": "norm.weight",
        "head": "lm_head.weight",
        "embedding": EMBEDDING,
    }


def _config(fields: Fields, name: str, target: ModelConfig) -> HeadConfig:
    speculators = fields.has(_SPECULATORS)
    layer = fields.nested(_SPECULATORS) if speculators else fields
    target_size = fields.integer("target_hidden_size", target.hidden_size)
    if target_size != target.hidden_size:
        raise fields.error(
            "target_hidden_size", target_size, f"{target.hidden_size}, as of {target.name}"
        )
    return config_from_fields(
        layer,
        target,
        name=name,
        hidden_size=layer.integer("hidden_size"),
        draft_vocab_size=fields.integer("draft_vocab_size", target.vocab_size),
        taps=_taps(fields, target),
        normed_residual=fields.flag("norm_before_residual", speculators),
    )


def _taps(fields: Fields, target: ModelConfig) -> tuple[int, ...]:
    """Layer ids count the layers before the tap, so that id k is the stream entering layer k."""
    holder = fields
    if fields.has("eagle_config") and not fields.has("eagle_aux_hidden_state_layer_ids"):
        holder = fields.nested("eagle_config")
    taps = holder.token_ids("eagle_aux_hidden_state_layer_ids")
    layers = target.num_layers
    taps = taps or default_taps(layers)
    if list(taps) != sorted(set(taps)) or taps[-1] > layers:
        raise holder.error(
            "eagle_aux_hidden_state_layer_ids",
            list(taps),
            f"ascending layers of {target.name}, 0 to {layers}",
        )
    return taps


def _draft_ids(directory: Path, folder: SafetensorsFolder, config: HeadConfig) -> NDArray[np.int32]:
    ids = np.arange(config.draft_vocab_size, dtype=np.int64)
    if "d2t" in folder.shapes:
        ids = ids + folder.read_integers("d2t")
    elif config.draft_vocab_size != config.vocab_size:
        raise ModelError(
            f"{directory}: tensor d2t is missing, but the draft vocabulary has "
            f"{config.draft_vocab_size} of {config.vocab_size} tokens"
        )
    in_range = ((ids >= 0) & (ids < config.vocab_size)).all()
    if not in_range or len(np.unique(ids)) != len(ids):
        raise ModelError(
            f"{directory}: tensor d2t does not give each draft id a token of its own from 0 to "
            f"{config.vocab_size - 1}"
        )
    return ids.astype(np.int32)

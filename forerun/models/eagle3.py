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

from forerun.models.config import ModelConfig, rope_from_fields
from forerun.models.draft_head import HeadCheckpoint, HeadConfig, check_tensors
from forerun.models.errors import ModelError
from forerun.models.fields import Fields
from forerun.models.json_object import read_json_object
from forerun.models.safetensors_folder import SafetensorsFolder

EMBEDDING = "embed_tokens.weight"

_NAMES = {
    "fc": "fc.weight",
    "embedding_norm": "{layer}.input_layernorm.weight",
    "hidden_norm": "{layer}.hidden_norm.weight",
    **{part: "{layer}.self_attn." + f"{part}_proj.weight" for part in ("q", "k", "v", "o")},
    "mlp_norm": "{layer}.post_attention_layernorm.weight",
    **{part: "{layer}.mlp." + f"{part}_proj.weight" for part in ("gate", "up", "down")},
    "final_norm": "norm.weight",
    "head": "lm_head.weight",
    "embedding": EMBEDDING,
}
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
        layer = "layers.0" if fields.has(_SPECULATORS) else "midlayer"
        names = check_tensors(
            directory,
            folder.shapes,
            {part: name.format(layer=layer) for part, name in _NAMES.items()},
            config,
            optional=("embedding",),
            others={"d2t": (config.draft_vocab_size,), "t2d": (config.vocab_size,)},
            kind="an EAGLE-3 head",
        )
        super().__init__(config, target, folder, names, _draft_ids(directory, folder, config))


def _config(fields: Fields, name: str, target: ModelConfig) -> HeadConfig:
    speculators = fields.has(_SPECULATORS)
    layer = fields.nested(_SPECULATORS) if speculators else fields
    layers = layer.integer("num_hidden_layers", 1)
    if layers != 1:
        raise layer.error("num_hidden_layers", layers, "1, the single layer of an EAGLE-3 head")
    vocab_size = layer.integer("vocab_size")
    if vocab_size != target.vocab_size:
        raise layer.error("vocab_size", vocab_size, f"{target.vocab_size}, as of {target.name}")
    target_size = fields.integer("target_hidden_size", target.hidden_size)
    if target_size != target.hidden_size:
        raise fields.error(
            "target_hidden_size", target_size, f"{target.hidden_size}, as of {target.name}"
        )
    hidden_size, num_heads = layer.integer("hidden_size"), layer.integer("num_attention_heads")
    max_positions = layer.integer("max_position_embeddings", 2048)
    return HeadConfig(
        name=name,
        hidden_size=hidden_size,
        intermediate_size=layer.integer("intermediate_size"),
        num_heads=num_heads,
        num_kv_heads=layer.integer("num_key_value_heads", num_heads),
        head_dim=layer.integer("head_dim", max(hidden_size // num_heads, 1)),
        rms_norm_eps=layer.number("rms_norm_eps", 1e-6),
        rope=rope_from_fields(layer, max_positions),
        max_positions=max_positions,
        vocab_size=vocab_size,
        draft_vocab_size=fields.integer("draft_vocab_size", vocab_size),
        taps=_taps(fields, target),
        target_hidden_size=target_size,
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

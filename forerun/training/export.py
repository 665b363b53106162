"""Owns the published form of a trained head: config.json and model.safetensors.

Which tensors and keys these are is the head's own concern, but for those that all heads share.
Knows nothing of how a head was trained.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import save
from torch import Tensor

from forerun.models import ModelConfig
from forerun.training.files import write_whole
from forerun.training.shape import HeadShape

WEIGHTS, CONFIG = "model.safetensors", "config.json"


@dataclass(frozen=True, slots=True)
class Published:
    """A head as other engines read it. tensors: by name; config: the content of config.json."""

    tensors: Mapping[str, Tensor]
    config: dict[str, Any]


def write_head(folder: Path, head: Published) -> None:
    """Writes both files; weights in bfloat16."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {
        name: (value.detach().bfloat16() if value.is_floating_point() else value).contiguous()
        for name, value in head.tensors.items()
    }
    write_whole(folder / WEIGHTS, save(tensors, metadata={"format": "pt"}))
    config = json.dumps(head.config, indent=1)
    write_whole(folder / CONFIG, f"{config}\n".encode())


def layer_config(shape: HeadShape, target: ModelConfig) -> dict[str, Any]:
    """What config.json tells of a head that is described as a model of one layer. Raises ValueError
    for a rotation that it has no words for."""
    return {
        "model_type": "llama",
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "num_hidden_layers": 1,
        "vocab_size": target.vocab_size,
        "rms_norm_eps": shape.rms_norm_eps,
        **rope_config(target),
        "max_position_embeddings": target.max_positions,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "bos_token_id": target.bos_token_id,
        "eos_token_id": target.eos_token_ids[0] if target.eos_token_ids else None,
        "dtype": "bfloat16",
    }


def rope_config(target: ModelConfig) -> dict[str, Any]:
    """The rotation in the form of config.json. Raises ValueError for one whose scaling is known by
    its divisors alone, which config.json has no place for."""
    rope = target.rope
    if rope.divisors is not None:
        raise ValueError(
            f"{target.name}: a head cannot be published with the rope divisors of a GGUF file; "
            "train on the model's safetensors folder"
        )
    scaling: dict[str, Any] | None = None
    if rope.type != "default":
        scaling = {"rope_type": rope.type, "factor": rope.factor}
    if scaling is not None and rope.type == "llama3":
        scaling["low_freq_factor"] = rope.low_freq_factor
        scaling["high_freq_factor"] = rope.high_freq_factor
        scaling["original_max_position_embeddings"] = rope.original_max_positions
    return {"rope_theta": rope.theta, "rope_scaling": scaling}

"""Owns the published form of a trained head: config.json and model.safetensors.

Names and keys are those of EAGLE-3 checkpoints, as other engines read them. Knows nothing of how
the head was trained.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save

from forerun.models import ModelConfig
from forerun.training.eagle3 import Eagle3Head
from forerun.training.files import write_whole
from forerun.training.vocabulary import DraftVocabulary

WEIGHTS, CONFIG = "model.safetensors", "config.json"


def write_eagle3(
    folder: Path,
    head: Eagle3Head,
    vocabulary: DraftVocabulary,
    target: ModelConfig,
    taps: tuple[int, ...],
) -> None:
    """Writes both files; weights in bfloat16."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {
        name: weight.detach().to(torch.bfloat16).contiguous()
        for name, weight in head.named_parameters()
    }
    tensors["d2t"] = vocabulary.d2t
    tensors["t2d"] = vocabulary.t2d(target.vocab_size)
    write_whole(folder / WEIGHTS, save(tensors, metadata={"format": "pt"}))
    config = json.dumps(eagle3_config(head, target, taps), indent=1)
    write_whole(folder / CONFIG, f"{config}\n".encode())


def eagle3_config(head: Eagle3Head, target: ModelConfig, taps: tuple[int, ...]) -> dict[str, Any]:
    """config.json. The ids of the taps are the layers whose inputs they are."""
    shape = head.shape
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "num_hidden_layers": 1,
        "vocab_size": target.vocab_size,
        "draft_vocab_size": shape.draft_vocab,
        "rms_norm_eps": shape.rms_norm_eps,
        "rope_theta": target.rope.theta,
        "rope_scaling": rope_scaling(target),
        "max_position_embeddings": target.max_positions,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "bos_token_id": target.bos_token_id,
        "eos_token_id": target.eos_token_ids[0] if target.eos_token_ids else None,
        "dtype": "bfloat16",
        "eagle_aux_hidden_state_layer_ids": list(taps),
    }


def rope_scaling(target: ModelConfig) -> dict[str, Any] | None:
    """The rotation's scaling in the form of config.json; None for the default. Raises ValueError
    for one that is known by its divisors alone, which config.json has no place for."""
    rope = target.rope
    if rope.divisors is not None:
        raise ValueError(
            f"{target.name}: a head cannot be published with the rope divisors of a GGUF file; "
            "train on the model's safetensors folder"
        )
    if rope.type == "default":
        return None
    scaling: dict[str, Any] = {"rope_type": rope.type, "factor": rope.factor}
    if rope.type == "llama3":
        scaling["low_freq_factor"] = rope.low_freq_factor
        scaling["high_freq_factor"] = rope.high_freq_factor
        scaling["original_max_position_embeddings"] = rope.original_max_positions
    return scaling

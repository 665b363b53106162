"""Owns reading an EAGLE-3 draft head as published: config.json and one safetensors file.

Names and shapes are those of the first release (arXiv:2503.01840): one `midlayer`, `fc` over the
target's hidden states, a head over a draft vocabulary, `d2t` from a draft id to how far the
target's id lies behind it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from forerun.models.bfloat16 import Bits
from forerun.models.config import ModelConfig, rope_from_fields
from forerun.models.errors import ModelError
from forerun.models.fields import Fields
from forerun.models.json_object import read_json_object
from forerun.models.rope import RopeConfig
from forerun.models.safetensors_folder import SafetensorsFolder

EMBEDDING = "embed_tokens.weight"


def default_taps(num_layers: int) -> tuple[int, int, int]:
    """The layers of a target whose inputs a head reads if it names none: those of the first
    release. They differ in a target of 7 layers or more."""
    return (2, num_layers // 2, num_layers - 3)


@dataclass(frozen=True, slots=True)
class Eagle3Config:
    """The shape of a head. taps: the hidden states it reads, the residual stream entering these
    layers of the target. target_hidden_size: elements of one of them. draft_vocab_size: tokens
    that it can propose."""

    name: str
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope: RopeConfig
    max_positions: int
    vocab_size: int
    draft_vocab_size: int
    taps: tuple[int, ...]
    target_hidden_size: int

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Every tensor that a head must have, by its published name."""
        h, q = self.hidden_size, self.num_heads * self.head_dim
        kv, inner = self.num_kv_heads * self.head_dim, self.intermediate_size
        return {
            "fc.weight": (h, len(self.taps) * self.target_hidden_size),
            "midlayer.input_layernorm.weight": (h,),
            "midlayer.hidden_norm.weight": (h,),
            "midlayer.self_attn.q_proj.weight": (q, 2 * h),
            "midlayer.self_attn.k_proj.weight": (kv, 2 * h),
            "midlayer.self_attn.v_proj.weight": (kv, 2 * h),
            "midlayer.self_attn.o_proj.weight": (h, q),
            "midlayer.post_attention_layernorm.weight": (h,),
            "midlayer.mlp.gate_proj.weight": (inner, h),
            "midlayer.mlp.up_proj.weight": (inner, h),
            "midlayer.mlp.down_proj.weight": (h, inner),
            "norm.weight": (h,),
            "lm_head.weight": (self.draft_vocab_size, h),
        }


class Eagle3Checkpoint:
    """An open head that was checked against its target.

    draft_ids: int32 [draft_vocab_size], the target's id of each draft id. has_embedding: whether it
    brings an embedding of its own; without one it uses the target's.

    Raises ModelError that names the key or the tensor that is missing, unknown, misshapen, or made
    for another target.
    """

    def __init__(self, directory: Path, target: ModelConfig) -> None:
        self.path = directory
        self.config = _config(directory, target)
        self._folder = SafetensorsFolder(directory)
        shapes = self.config.shapes()
        self.has_embedding = EMBEDDING in self._folder.shapes
        if self.has_embedding:
            shapes[EMBEDDING] = (self.config.vocab_size, self.config.hidden_size)
        elif self.config.hidden_size != target.hidden_size:
            raise ModelError(
                f"{directory}: {EMBEDDING} is missing, and the target's cannot stand in: its rows "
                f"have {target.hidden_size} elements, those of the head {self.config.hidden_size}"
            )
        _check_tensors(directory, self._folder.shapes, shapes, self.config)
        self.tensor_shapes = shapes
        self.draft_ids = _draft_ids(directory, self._folder, self.config)
        self._folder.open(shapes)

    def read_rows(self, name: str, start: int, stop: int) -> Bits:
        """Rows start..stop-1 of a tensor (elements, of a vector), in bfloat16; it has so many."""
        return self._folder.read_block(name, start, stop)

    def close(self) -> None:
        self._folder.close()

    def __enter__(self) -> Eagle3Checkpoint:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _config(directory: Path, target: ModelConfig) -> Eagle3Config:
    fields = Fields(read_json_object(directory / "config.json"), f"{directory}/config.json")
    layers = fields.integer("num_hidden_layers", 1)
    if layers != 1:
        raise fields.error("num_hidden_layers", layers, "1, the single layer of an EAGLE-3 head")
    vocab_size = fields.integer("vocab_size")
    if vocab_size != target.vocab_size:
        raise fields.error("vocab_size", vocab_size, f"{target.vocab_size}, as of {target.name}")
    target_size = fields.integer("target_hidden_size", target.hidden_size)
    if target_size != target.hidden_size:
        raise fields.error(
            "target_hidden_size", target_size, f"{target.hidden_size}, as of {target.name}"
        )
    hidden_size, num_heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
    max_positions = fields.integer("max_position_embeddings", 2048)
    return Eagle3Config(
        name=directory.resolve().name,
        hidden_size=hidden_size,
        intermediate_size=fields.integer("intermediate_size"),
        num_heads=num_heads,
        num_kv_heads=fields.integer("num_key_value_heads", num_heads),
        head_dim=fields.integer("head_dim", max(hidden_size // num_heads, 1)),
        rms_norm_eps=fields.number("rms_norm_eps", 1e-6),
        rope=rope_from_fields(fields, max_positions),
        max_positions=max_positions,
        vocab_size=vocab_size,
        draft_vocab_size=fields.integer("draft_vocab_size", vocab_size),
        taps=_taps(fields, target),
        target_hidden_size=target_size,
    )


def _taps(fields: Fields, target: ModelConfig) -> tuple[int, ...]:
    """Layer ids count the layers before the tap, so that id k is the stream entering layer k."""
    nested = fields.table.get("eagle_config")
    holder = fields
    if isinstance(nested, dict) and not fields.has("eagle_aux_hidden_state_layer_ids"):
        holder = Fields(nested, f"{fields.source}: eagle_config")
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


def _check_tensors(
    directory: Path,
    found: dict[str, tuple[int, ...]],
    expected: dict[str, tuple[int, ...]],
    config: Eagle3Config,
) -> None:
    for name, shape in expected.items():
        if name not in found:
            raise ModelError(f"{directory}: tensor {name} is missing; the head is incomplete")
        if found[name] != shape:
            raise ModelError(
                f"{directory}: tensor {name} has shape {list(found[name])}; expected {list(shape)}"
            )
    maps = {"d2t": (config.draft_vocab_size,), "t2d": (config.vocab_size,)}
    for name, shape in found.items():
        if name not in expected and name not in maps:
            raise ModelError(f"{directory}: tensor {name} is not part of an EAGLE-3 head")
        if name in maps and shape != maps[name]:
            raise ModelError(
                f"{directory}: tensor {name} has shape {list(shape)}; expected {list(maps[name])}"
            )


def _draft_ids(
    directory: Path, folder: SafetensorsFolder, config: Eagle3Config
) -> NDArray[np.int32]:
    ids = np.arange(config.draft_vocab_size, dtype=np.int64)
    if "d2t" in folder.shapes:
        ids = ids + folder.read_integers("d2t")
    elif config.draft_vocab_size != config.vocab_size:
        raise ModelError(
            f"{directory}: tensor d2t is missing, but the draft vocabulary has "
            f"{config.draft_vocab_size} of {config.vocab_size} tokens"
        )
    if ids.min() < 0 or ids.max() >= config.vocab_size or len(np.unique(ids)) != len(ids):
        raise ModelError(
            f"{directory}: tensor d2t does not give each draft id a token of its own from 0 to "
            f"{config.vocab_size - 1}"
        )
    return ids.astype(np.int32)

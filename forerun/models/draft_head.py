"""Owns what every draft head is to the engine that runs it: its shape, and its tensors by part.

A part is what the native module calls a tensor (`fc`, `q`, `mlp_norm`, …); what a format calls it
is the format's own concern.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.models.bfloat16 import Bits
from forerun.models.config import ModelConfig, rope_from_fields
from forerun.models.errors import ModelError
from forerun.models.fields import Fields
from forerun.models.opened import Opened
from forerun.models.rope import RopeConfig
from forerun.models.safetensors_folder import SafetensorsFolder
from forerun.models.tensor_set import Shapes


@dataclass(frozen=True, slots=True)
class HeadConfig:
    """The shape of a head. taps: the hidden states it reads, the residual stream entering these
    layers of the target, the number of its layers for what leaves the final norm.
    target_hidden_size: elements of one of them. draft_vocab_size: tokens that it can propose.
    fused, passes_norm, normed_residual: see native/include/forerun/draft_head.h."""

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
    fused: bool = False
    passes_norm: bool = False
    normed_residual: bool = False

    def shapes(self) -> Shapes:
        """Every part that there can be."""
        h, q = self.hidden_size, self.num_heads * self.head_dim
        kv, inner = self.num_kv_heads * self.head_dim, self.intermediate_size
        layer_input = h if self.fused else 2 * h
        fc_input = 2 * h if self.fused else len(self.taps) * self.target_hidden_size
        norms = ("embedding_norm", "hidden_norm", "layer_norm", "mlp_norm", "final_norm")
        return {
            "fc": (h, fc_input),
            "fc_bias": (h,),
            **dict.fromkeys(norms, (h,)),
            "q": (q, layer_input),
            "q_bias": (q,),
            "k": (kv, layer_input),
            "k_bias": (kv,),
            "v": (kv, layer_input),
            "v_bias": (kv,),
            "o": (h, q),
            "gate": (inner, h),
            "up": (inner, h),
            "down": (h, inner),
            "head": (self.draft_vocab_size, h),
            "embedding": (self.vocab_size, h),
        }


def layer_names(prefix: str) -> dict[str, str]:
    """The parts of the decoder layer itself, as every format names them under its prefix."""
    attention = {part: f"{prefix}self_attn.{part}_proj.weight" for part in ("q", "k", "v", "o")}
    mlp = {part: f"{prefix}mlp.{part}_proj.weight" for part in ("gate", "up", "down")}
    return {**attention, "mlp_norm": f"{prefix}post_attention_layernorm.weight", **mlp}


def bias_names(prefix: str) -> dict[str, str]:
    """The biases of queries, keys and values, where a layer has them."""
    return {f"{part}_bias": f"{prefix}self_attn.{part}_proj.bias" for part in ("q", "k", "v")}


def config_from_fields(
    layer: Fields, target: ModelConfig, *, name: str, hidden_size: int, **rest: Any
) -> HeadConfig:
    """The configuration of a head whose layer is described as a model of one layer is; rest: the
    other fields of HeadConfig.

    Raises ModelError for more layers, or another vocabulary than the target's.
    """
    layers, vocab_size = layer.integer("num_hidden_layers", 1), layer.integer("vocab_size")
    if layers != 1:
        raise layer.error("num_hidden_layers", layers, "1, the single layer of a head")
    if vocab_size != target.vocab_size:
        raise layer.error("vocab_size", vocab_size, f"{target.vocab_size}, as of {target.name}")
    num_heads = layer.integer("num_attention_heads")
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
        vocab_size=target.vocab_size,
        target_hidden_size=target.hidden_size,
        **rest,
    )


class HeadCheckpoint(Opened):
    """An open head that was checked against its target.

    parts: shapes of those that it has. from_target: those that it takes from the target, and its
    name for them. draft_ids: int32 [draft_vocab_size], the target's id of each draft id.
    """

    def __init__(
        self,
        config: HeadConfig,
        target: ModelConfig,
        folder: SafetensorsFolder,
        names: Mapping[str, str],
        draft_ids: NDArray[np.int32],
        hidden_first: bool = False,
    ) -> None:
        """names: of the tensors of the parts. hidden_first: whether the columns of `fc` are those
        of the hidden states and then those of the embedding. Where the embedding or the head has no
        name, the target's must have rows of hidden_size."""
        self.config = config
        self.draft_ids = draft_ids
        self._folder, self._names, self._hidden_first = folder, dict(names), hidden_first
        self.parts = {part: shape for part, shape in config.shapes().items() if part in names}
        self.from_target: dict[str, str] = {}
        if "embedding" not in names:
            self.from_target["embedding"] = "model.embed_tokens.weight"
        if "head" not in names:
            tied = target.tie_word_embeddings
            self.from_target["head"] = "model.embed_tokens.weight" if tied else "lm_head.weight"
        folder.open(self._names.values())

    def read_rows(self, part: str, start: int, stop: int) -> Bits:
        """Rows start..stop-1 of a part (elements, of a vector), in bfloat16; it has so many."""
        rows = self._folder.read_block(self._names[part], start, stop)
        if part == "fc" and self._hidden_first:
            hidden, embedding = np.split(rows, 2, axis=1)
            return np.concatenate([embedding, hidden], axis=1)
        return rows

    def close(self) -> None:
        self._folder.close()


def check_tensors(
    source: Path,
    found: Shapes,
    names: Mapping[str, str],
    config: HeadConfig,
    *,
    optional: Collection[str] = (),
    others: Mapping[str, tuple[int, ...]] | None = None,
    prefix: str = "",
    kind: str,
) -> dict[str, str]:
    """The names of the parts that are there. `optional` parts may be missing, `others` are tensors
    that are no part; nothing else may begin with `prefix`.

    Raises ModelError that names the tensor that is missing, unknown or misshapen.
    """
    shapes = config.shapes()
    present = {part: name for part, name in names.items() if name in found or part not in optional}
    expected = {name: shapes[part] for part, name in present.items()}
    for name in expected:
        if name not in found:
            raise ModelError(
                f"{source}: tensor {name} is missing; this is not {kind}, or it is incomplete"
            )
    for name, shape in found.items():
        if not name.startswith(prefix):
            continue
        wanted = expected.get(name, (others or {}).get(name))
        if wanted is None:
            raise ModelError(f"{source}: tensor {name} is not part of {kind}")
        if shape != wanted:
            raise ModelError(
                f"{source}: tensor {name} has shape {list(shape)}; expected {list(wanted)}"
            )
    return present

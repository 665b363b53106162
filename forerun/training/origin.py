"""Owns a published head that training goes on from: its weights, and the tokens it can propose."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from forerun.models import ModelConfig
from forerun.models.eagle3 import Eagle3Checkpoint
from forerun.training.export import WEIGHTS


@dataclass(frozen=True, slots=True)
class Origin:
    """An EAGLE-3 head as it was published. tensors: float32, by name. target_ids: int64, the
    target's id of each row of lm_head."""

    tensors: Mapping[str, Tensor]
    target_ids: Tensor

    @torch.no_grad()
    def begin(self, name: str, weight: Tensor, draft_ids: Tensor) -> None:
        """Sets a weight to that of the same name. What it has more, heads of attention, begins at
        0; rows of lm_head that are new, as the linear map says that takes the others from what
        they were, the target's, to what they became. draft_ids: of target_ids, -1 for none.

        Raises ValueError where it has less.
        """
        given = self.tensors[name]
        if name == "lm_head.weight":
            known = draft_ids >= 0
            rows = draft_ids[known]
            weight.copy_(weight @ torch.linalg.lstsq(weight[rows], given[known]).solution)
            weight[rows] = given[known]
            return
        if any(mine < other for mine, other in zip(weight.shape, given.shape, strict=True)):
            raise ValueError(
                f"{name} of the head to go on from is {list(given.shape)}; a head that is trained "
                f"here has {list(weight.shape)}"
            )
        weight.zero_()
        weight[tuple(map(slice, given.shape))] = given


def read_origin(folder: Path, target: ModelConfig, taps: tuple[int, ...]) -> Origin:
    """The head of a folder. taps: those that a head must read.

    Raises ModelError for what is no EAGLE-3 head of this target, and ValueError for one that is
    built in another way than those that are trained here.
    """
    with Eagle3Checkpoint(folder, target) as checkpoint:
        config, ids = checkpoint.config, torch.from_numpy(checkpoint.draft_ids).long()
    expected = (
        ("taps", config.taps, taps),
        ("hidden_size", config.hidden_size, target.hidden_size),
        ("intermediate_size", config.intermediate_size, target.intermediate_size),
        ("head_dim", config.head_dim, target.head_dim),
        ("rope", config.rope, target.rope),
        ("norm_before_residual", config.normed_residual, False),
    )
    for name, found, wanted in expected:
        if found != wanted:
            raise ValueError(
                f"{folder}: {name} is {found}; to go on from a head, it must be {wanted}"
            )
    tensors = load_file(folder / WEIGHTS)
    if "midlayer.hidden_norm.weight" not in tensors or "embed_tokens.weight" in tensors:
        raise ValueError(
            f"{folder}: has other tensors than a head that train-draft writes; take one of those"
        )
    return Origin({name: tensor.float() for name, tensor in tensors.items()}, ids)

"""Owns the file that training goes on from: one safetensors file, its state as JSON in the header.

One file, since two could be of different steps after a crash.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from forerun.training.files import write_whole

_STATE = "forerun_training_state"


@dataclass(frozen=True, slots=True)
class TrainingCheckpoint:
    """tensors: by groups ("head", "optimiser", "vocabulary") and their own names. state: JSON."""

    tensors: dict[str, dict[str, Tensor]]
    state: dict[str, Any]

    def write(self, path: Path) -> None:
        flat = {
            f"{group}:{name}": tensor.contiguous()
            for group, tensors in self.tensors.items()
            for name, tensor in tensors.items()
        }
        write_whole(path, save(flat, metadata={_STATE: json.dumps(self.state)}))


def read_checkpoint(path: Path) -> TrainingCheckpoint:
    """Raises ValueError for a file of something else."""
    tensors: dict[str, dict[str, Tensor]] = {}
    with safe_open(path, framework="pt") as file:
        metadata: Mapping[str, str] = file.metadata() or {}
        if _STATE not in metadata:
            raise ValueError(f"{path} is no checkpoint of training; remove it to begin anew")
        for key in file.keys():
            group, _, name = key.partition(":")
            tensors.setdefault(group, {})[name] = file.get_tensor(key)
    return TrainingCheckpoint(tensors, json.loads(metadata[_STATE]))

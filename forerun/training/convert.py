"""Owns making a safetensors file of a `pytorch_model.bin`, so that serving unpickles nothing.

PyTorch's restricted reader (`weights_only`) builds tensors and containers, and runs no code of
whoever made the file.
"""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import save

from forerun.models import ModelError
from forerun.training.files import write_whole

SOURCE, RESULT = "pytorch_model.bin", "model.safetensors"


def convert(directory: Path) -> Path:
    """Writes `model.safetensors` beside the `pytorch_model.bin` of a folder; returns its path.

    Raises ModelError for a file that is missing, damaged, or holds anything but tensors, and where
    a safetensors file is there already.
    """
    source, result = directory / SOURCE, directory / RESULT
    if not source.is_file():
        raise ModelError(f"{directory} holds no {SOURCE}; there is nothing to convert")
    if result.exists():
        raise ModelError(f"{result} is there already; remove it to have it made anew")
    try:
        found = torch.load(source, map_location="cpu", weights_only=True)
    except Exception as error:  # whatever a damaged or forbidden file makes the reader raise
        # Not with the reader's own words: they advise to read the file with all that is in it.
        raise ModelError(
            f"{source} is no file of tensors alone: it is damaged, or brings code, which is not"
            " run; fetch it anew, or ask who made it for safetensors"
        ) from error
    if not isinstance(found, dict) or not found:
        raise ModelError(f"{source} holds a {type(found).__name__}; expected tensors by name")
    for name, value in found.items():
        if not isinstance(name, str) or not isinstance(value, torch.Tensor):
            raise ModelError(f"{source}: {name!r:.80} is a {type(value).__name__}, not a tensor")
    # Copies: views of one storage cannot be written.
    write_whole(result, save({name: value.clone().contiguous() for name, value in found.items()}))
    return result

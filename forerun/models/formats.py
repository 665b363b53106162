"""Owns the choice of a format for weights and tokenizer by what a path holds."""

from __future__ import annotations

import os
from pathlib import Path

from forerun.models.checkpoint import Checkpoint
from forerun.models.errors import ModelError
from forerun.models.folder_tokenizer import load_folder_tokenizer
from forerun.models.tokenizer import Tokenizer


def gguf_file_of(path: Path) -> Path | None:
    """Return the GGUF file that `path` is or that the folder `path` holds; None if neither.

    A folder with config.json is a Hugging Face checkpoint whatever else it holds. Raises
    ModelError if nothing is there, or if a folder holds several GGUF files.
    """
    if path.is_file():
        return path
    if not path.is_dir():
        raise ModelError(f"{path} does not exist; give a checkpoint folder or a .gguf file")
    if (path / "config.json").is_file():
        return None
    files = sorted(path.glob("*.gguf"))
    if len(files) == 1:
        return files[0]
    if files:
        raise ModelError(f"{path} holds {len(files)} .gguf files; name one of them")
    raise ModelError(f"{path} holds neither config.json nor a .gguf file")


def open_checkpoint(path: str | os.PathLike[str]) -> Checkpoint:
    """Open and check a checkpoint: a folder with config.json and safetensors files, a .gguf file,
    or a folder with exactly one .gguf file.

    Raises ModelError naming what is wrong: unknown architecture, activation, rope or quantisation
    type; missing, extra or misshapen tensor; damaged file.
    """
    # Each format needs a library of its own, which the other should not have to wait for.
    gguf_file = gguf_file_of(Path(path))
    if gguf_file is not None:
        from forerun.models.gguf_checkpoint import GgufCheckpoint

        return GgufCheckpoint(gguf_file)
    from forerun.models.safetensors_checkpoint import SafetensorsCheckpoint

    return SafetensorsCheckpoint(Path(path))


def load_tokenizer(path: str | os.PathLike[str]) -> Tokenizer:
    """Load the tokenizer that belongs to the checkpoint at `path` (as for `open_checkpoint`).

    A tokenizer.json beside a .gguf file is preferred to the metadata inside, which hold less.
    Raises ModelError if there is no tokenizer or it cannot be rebuilt exactly.
    """
    gguf_file = gguf_file_of(Path(path))
    if gguf_file is None:
        return load_folder_tokenizer(Path(path))
    if (gguf_file.parent / "tokenizer.json").is_file():
        return load_folder_tokenizer(gguf_file.parent)
    from forerun.models.gguf_file import GgufFile
    from forerun.models.gguf_tokenizer import tokenizer_from_gguf

    file = GgufFile(gguf_file)
    file.close()
    return tokenizer_from_gguf(file.metadata, str(gguf_file))

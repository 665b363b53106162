"""Owns what the target has computed of documents, on disk: prefills cost more than training steps.

Hidden states are hundreds of times larger than ids, so they get so much room and no more; what has
none is computed again when it is needed.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from forerun.training.corpus import Document
from forerun.training.files import write_whole

_SUFFIX = ".safetensors"


class StateStore:
    """Hidden states by document, in files of a folder. room_bytes: of all files together."""

    def __init__(self, folder: Path, room_bytes: int) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        taken = sum(path.stat().st_size for path in folder.glob(f"*{_SUFFIX}"))
        self._room = room_bytes - taken

    def of(self, document: Document, compute: Callable[[Document], Tensor]) -> Tensor:
        """Those of a document, bfloat16 [n, states, hidden], computed where they are not there."""
        path = self._folder / f"{document.index:08}{_SUFFIX}"
        states = _read(path, document)
        if states is None:
            states = compute(document)
            if self._room >= states.nbytes:
                ids = torch.from_numpy(document.token_ids)
                content = save({"states": states.contiguous(), "token_ids": ids})
                write_whole(path, content)
                self._room -= len(content)
        return states


def _read(path: Path, document: Document) -> Tensor | None:
    """None where the file is missing, damaged, or of other tokens."""
    try:
        found = load_file(path)
        if torch.equal(found["token_ids"], torch.from_numpy(document.token_ids)):
            return found["states"]
    except (OSError, KeyError, SafetensorError):
        pass
    return None

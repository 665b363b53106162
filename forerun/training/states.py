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

from forerun.models import ModelConfig
from forerun.training.corpus import Document
from forerun.training.files import write_whole

_SUFFIX = ".safetensors"


def states_of(taps: tuple[int, ...], num_layers: int) -> tuple[int, ...]:
    """The taps of the states that a head with these taps is trained on: last, or among them, those
    after the final norm."""
    return taps if num_layers in taps else (*taps, num_layers)


class StateStore:
    """Hidden states by document, in files of a folder.

    taps: whose states they are, as states_of gives them. room_bytes: of all files together.
    """

    def __init__(self, folder: Path, taps: tuple[int, ...], room_bytes: int) -> None:
        self.taps = taps
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        taken = sum(path.stat().st_size for path in folder.glob(f"*{_SUFFIX}"))
        self._room = room_bytes - taken

    def of(self, document: Document, compute: Callable[[Document], Tensor]) -> Tensor:
        """Those of a document, bfloat16 [n, states, hidden], computed where they are not there."""
        states = _read(self._path(document), document)
        if states is None:
            states = compute(document)
            self.add(document, states)
        return states

    def add(self, document: Document, states: Tensor) -> None:
        """Keeps states, bfloat16 [n, states, hidden], where there is room."""
        if self._room >= states.nbytes:
            ids = torch.from_numpy(document.token_ids)
            content = save({"states": states.contiguous(), "token_ids": ids})
            write_whole(self._path(document), content)
            self._room -= len(content)

    def _path(self, document: Document) -> Path:
        return self._folder / f"{document.index:08}{_SUFFIX}"


def store_for(
    work: Path, taps: tuple[int, ...], target: ModelConfig, room_bytes: int
) -> StateStore:
    """That of a head with these taps, in a work folder, which heads can share."""
    name = "states-" + "-".join(map(str, taps))
    return StateStore(work / name, states_of(taps, target.num_layers), room_bytes)


def _read(path: Path, document: Document) -> Tensor | None:
    """None where the file is missing, damaged, or of other tokens."""
    try:
        found = load_file(path)
        if torch.equal(found["token_ids"], torch.from_numpy(document.token_ids)):
            return found["states"]
    except (OSError, KeyError, SafetensorError):
        pass
    return None

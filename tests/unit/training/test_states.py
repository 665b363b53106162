"""Hidden states are computed once, where there is room, and never taken for another document's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from forerun.training.corpus import Document
from forerun.training.states import StateStore

KIB = 1024


def document(index: int, first: int = 0) -> Document:
    return Document(index, np.arange(first, first + 8, dtype=np.int32), num_prompt=2, greedy=True)


class Target:
    """Computes states that tell of the document, and counts."""

    def __init__(self) -> None:
        self.computed: list[int] = []

    def __call__(self, document: Document) -> Tensor:
        self.computed.append(document.index)
        return torch.full((8, 2, 64), float(document.token_ids[0]), dtype=torch.bfloat16)


def test_states_outlast_the_run(tmp_path: Path) -> None:
    target = Target()
    for _ in range(2):
        store = StateStore(tmp_path / "states", (1, 2), 100 * KIB)
        for index in (3, 4, 3):
            states = store.of(document(index, first=index), target)
            assert states.dtype == torch.bfloat16 and states.shape == (8, 2, 64)
            assert float(states[0, 0, 0]) == index
    assert target.computed == [3, 4]


def test_what_has_no_room_is_computed_again(tmp_path: Path) -> None:
    target = Target()
    store = StateStore(tmp_path, (1, 2), 4 * KIB)  # one document takes 2 KiB and its header
    for _ in range(2):
        for index in range(3):
            store.of(document(index), target)
    assert target.computed == [0, 1, 2, 1, 2]
    StateStore(tmp_path, (1, 2), 4 * KIB).of(document(9), target)
    StateStore(tmp_path, (1, 2), 4 * KIB).of(document(9), target)
    assert target.computed[-2:] == [9, 9], "what earlier runs have written counts"


def test_files_of_other_documents_or_damaged_ones_are_not_used(tmp_path: Path) -> None:
    target = Target()
    StateStore(tmp_path, (1, 2), KIB * KIB).of(document(5, first=1), target)
    store = StateStore(tmp_path, (1, 2), KIB * KIB)
    assert float(store.of(document(5, first=2), target)[0, 0, 0]) == 2
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:40])
    assert float(store.of(document(5, first=2), target)[0, 0, 0]) == 2
    assert target.computed == [5, 5, 5]

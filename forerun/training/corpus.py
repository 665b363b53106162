"""Owns the training data on disk: shards of token ids, which only ever are added.

A document is a prompt and the target's answer. What the target computes for it is not kept: hidden
states are hundreds of times larger than ids, and a prefill gives them again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.numpy import save

from forerun.training.files import write_whole

_SETTINGS = "corpus.json"


@dataclass(frozen=True, slots=True, eq=False)
class Document:
    """A prompt and its answer.

    index: its number in the order of generation, which seeds its draws. token_ids: int32 [n];
    the first num_prompt are the prompt. greedy: whether the answer is the target's argmax.
    """

    index: int
    token_ids: NDArray[np.int32]
    num_prompt: int
    greedy: bool

    @property
    def answer(self) -> NDArray[np.int32]:
        """The ids of the answer, the end-of-sequence id included where it came to one."""
        return self.token_ids[self.num_prompt :]


class Corpus:
    """The documents in a folder, in the order in which they were added.

    settings: what they were made with, JSON values. Raises ValueError where the folder holds
    documents of other settings.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / _SETTINGS
        if path.exists():
            _require_same(json.loads(path.read_text("utf-8")), dict(settings), path)
        else:
            write_whole(path, json.dumps(settings, indent=1).encode())
        self._shards: list[Path] = []
        self.documents: list[Document] = []
        self.refresh()

    def refresh(self) -> None:
        """Reads the shards that another process has added meanwhile."""
        for shard in sorted(self._folder.glob("shard-*.safetensors"))[len(self._shards) :]:
            self._shards.append(shard)
            self.documents += _read(shard)

    @property
    def num_answer_tokens(self) -> int:
        return sum(len(document.answer) for document in self.documents)

    @property
    def next_index(self) -> int:
        """The lowest number that no document here has reached."""
        return 1 + max((document.index for document in self.documents), default=-1)

    def add(self, documents: Sequence[Document]) -> None:
        """Writes a shard; either all of it is there afterwards or nothing."""
        if not documents:
            return
        number = int(self._shards[-1].stem.removeprefix("shard-")) + 1 if self._shards else 0
        path = self._folder / f"shard-{number:06}.safetensors"
        arrays = {
            "token_ids": np.concatenate([d.token_ids for d in documents]),
            "num_tokens": np.asarray([len(d.token_ids) for d in documents], dtype=np.int32),
            "num_prompt": np.asarray([d.num_prompt for d in documents], dtype=np.int32),
            "index": np.asarray([d.index for d in documents], dtype=np.int64),
            "greedy": np.asarray([d.greedy for d in documents], dtype=np.uint8),
        }
        write_whole(path, save(arrays))
        self._shards.append(path)
        self.documents += documents


def _read(shard: Path) -> list[Document]:
    with safe_open(shard, framework="numpy") as file:
        arrays = {name: file.get_tensor(name) for name in file.keys()}
    ends = np.cumsum(arrays["num_tokens"])
    return [
        Document(int(index), np.ascontiguousarray(ids, np.int32), int(num_prompt), bool(greedy))
        for index, ids, num_prompt, greedy in zip(
            arrays["index"],
            np.split(arrays["token_ids"], ends[:-1]),
            arrays["num_prompt"],
            arrays["greedy"],
            strict=True,
        )
    ]


def _require_same(found: dict[str, Any], wanted: dict[str, Any], path: Path) -> None:
    for key in sorted(found.keys() | wanted.keys()):
        if found.get(key) != wanted.get(key):
            raise ValueError(
                f"{path}: {key} is {found.get(key)!r} there and {wanted.get(key)!r} now; "
                "take the same settings, or another work folder"
            )

"""Owns the order in which documents are trained on: those never seen first, then all once more."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np


@dataclass(slots=True)
class Order:
    """Numbers of documents, pass after pass, each pass in an order of its own.

    A pass goes over the documents first to last - 1, as many as there were when it began. seen:
    documents that some pass has gone over; passes: passes that have begun; position: documents of
    this pass that were given out. All of it is what a later run needs to go on.
    """

    seed: int
    first: int = 0
    last: int = 0
    seen: int = 0
    passes: int = 0
    position: int = 0

    @property
    def pass_ended(self) -> bool:
        return self.position == self.last - self.first

    def begin_pass(self, available: int) -> None:
        """Begins a pass over what was never seen or, if there is none, over all. Raises ValueError
        for no documents at all."""
        if available == 0:
            raise ValueError("there is no document to train on; generate some first")
        self.first = self.seen if available > self.seen else 0
        self.last = self.seen = available
        self.passes += 1
        self.position = 0

    def take(self) -> int:
        """The number of the next document."""
        random = np.random.default_rng([self.seed, self.passes])
        index = self.first + int(random.permutation(self.last - self.first)[self.position])
        self.position += 1
        return index

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

"""Drafts by another method, with confidences corrected by what became of earlier ones."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import Generic, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from draft_server.drafters.base import Drafter, DrafterInfo, DraftState, FeatureDrafter
from draft_server.drafters.calibration import Calibration
from forerun.tree import Budget, Tree

logger = logging.getLogger(__name__)

# Trees after which a model that was never right is suspected.
SUSPICIOUS_TREES = 64

S = TypeVar("S", bound=DraftState)


class CalibratedDrafter(Generic[S]):
    """A method that gives confidences, and what was learned of them."""

    def __init__(self, drafter: Drafter[S]) -> None:
        self._drafter = drafter
        self._latest: dict[int, Tree] = {}  # by session, until its tokens are known
        self._trees = 0
        self._calibration = Calibration()
        self.calibrations = {drafter.info.name: self._calibration}

    @property
    def info(self) -> DrafterInfo:
        return self._drafter.info

    def open(self, prompt_ids: Sequence[int]) -> S:
        return self._drafter.open(prompt_ids)

    def advance(self, state: S, token_ids: Sequence[int]) -> None:
        tree = self._latest.pop(id(state), None) if token_ids else None
        if tree is not None:
            self._calibration.learn(tree, token_ids)
            self._check(tree)
        self._drafter.advance(state, token_ids)

    def feed(self, state: S, first_position: int, hidden: NDArray[np.uint16]) -> None:
        cast("FeatureDrafter[S]", self._drafter).feed(state, first_position, hidden)

    def draft(self, batch: Sequence[tuple[S, Budget]], seconds: float = math.inf) -> list[Tree]:
        trees = self._drafter.draft(batch, seconds)
        for (state, _), tree in zip(batch, trees, strict=True):
            self._latest[id(state)] = tree
        return [self._calibration.correct(tree) for tree in trees]

    def warm(self) -> bool:
        return self._drafter.warm()

    def close(self, state: S) -> None:
        self._latest.pop(id(state), None)
        self._drafter.close(state)

    def _check(self, tree: Tree) -> None:
        """Warns once where a model never guesses right: it may be made for another target."""
        if tree.num_nodes == 0 or self.info.max_context is None:
            return
        self._trees += 1
        if self._trees == SUSPICIOUS_TREES:
            _, first = next(iter(self._calibration.by_depth()))
            if first.hits == 0:
                logger.warning(
                    "draft %s: none of its first %d trees began with the token that came; check"
                    " that its model was made for this target",
                    self.info.name,
                    self._trees,
                )

"""Drafts by two methods at once: the likeliest nodes of both trees fill the budget.

Owns the merging. N-grams are sure where the text repeats itself, and a head where it does not; each
says how sure it is, so that neither has to be chosen beforehand. Where n-grams are sure the head is
not asked: it would add less than its time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from draft_server.drafters.base import DrafterInfo, DraftState
from draft_server.drafters.calibrated import CalibratedDrafter
from draft_server.drafters.ngram import NgramState
from forerun.tree import Budget, Tree

# Nodes that n-grams expect to be accepted: with so many a head is not asked. On the questions of
# `forerun bench acceptance` that spares time worth 4 % of the tokens for 2 % of the accepted ones.
SURE = 1.5

S = TypeVar("S", bound=DraftState)


class CombinedState(DraftState, Generic[S]):
    """The states of both methods; `committed` is the list of `other`."""

    __slots__ = ("ngram", "other")

    def __init__(self, ngram: NgramState, other: S) -> None:
        super().__init__(other.committed)
        self.ngram, self.other = ngram, other


class CombinedDrafter(Generic[S]):
    """The methods `ngram+…`: n-grams together with a head."""

    def __init__(self, ngram: CalibratedDrafter[NgramState], other: CalibratedDrafter[S]) -> None:
        self._ngram, self._other = ngram, other
        self.calibrations = {**ngram.calibrations, **other.calibrations}
        info = other.info
        self.info = DrafterInfo(
            f"{ngram.info.name}+{info.name}",
            hidden_taps=info.hidden_taps,
            blind=True,
            max_context=info.max_context,
        )

    def open(self, prompt_ids: Sequence[int]) -> CombinedState[S]:
        return CombinedState(self._ngram.open(prompt_ids), self._other.open(prompt_ids))

    def advance(self, state: CombinedState[S], token_ids: Sequence[int]) -> None:
        self._ngram.advance(state.ngram, token_ids)
        self._other.advance(state.other, token_ids)

    def feed(
        self, state: CombinedState[S], first_position: int, hidden: NDArray[np.uint16]
    ) -> None:
        self._other.feed(state.other, first_position, hidden)

    def draft(
        self, batch: Sequence[tuple[CombinedState[S], Budget]], seconds: float = math.inf
    ) -> list[Tree]:
        looked_up = self._ngram.draft([(state.ngram, budget) for state, budget in batch])
        unsure = [i for i, tree in enumerate(looked_up) if sum(tree.chances()[1:]) < SURE]
        asked = [(batch[i][0].other, batch[i][1]) for i in unsure]
        thought_up = self._other.draft(asked, seconds) if asked else []
        trees = list(looked_up)
        for i, other in zip(unsure, thought_up, strict=True):
            state, budget = batch[i]
            trees[i] = merge([looked_up[i], other], budget.nodes)
            state.fallback = state.other.fallback
        return trees

    def warm(self) -> bool:
        return self._other.warm()

    def close(self, state: CombinedState[S]) -> None:
        self._ngram.close(state.ngram)
        self._other.close(state.other)


def merge(trees: Sequence[Tree], nodes: int) -> Tree:
    """The `nodes` likeliest nodes of trees with one root, the likeliest first. A node of several
    trees is as likely as the surest of them says; impossible ones are left out.

    Products never rise towards the leaves in any of the trees, and so not in what is the largest of
    them: parents are among the likeliest with their children, and before them.
    """
    products: dict[tuple[int, ...], float] = {}
    for tree in trees:
        paths: list[tuple[int, ...]] = [()]
        for node, chance in list(enumerate(tree.chances()))[1:]:
            path = (*paths[tree.parents[node]], tree.token_ids[node])
            paths.append(path)
            if chance > 0.0:
                products[path] = max(products.get(path, 0.0), chance)
    best = sorted(products, key=lambda path: (-products[path], len(path)))[:nodes]
    places = {(): 0} | {path: place for place, path in enumerate(best, start=1)}
    root = trees[0].token_ids[0]
    if not best:
        return Tree.root_only(root)
    return Tree(
        (root, *(path[-1] for path in best)),
        (-1, *(places[path[:-1]] for path in best)),
        (1.0, *(products[path] / products.get(path[:-1], 1.0) for path in best)),
    )

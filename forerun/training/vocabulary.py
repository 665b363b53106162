"""Owns the draft vocabulary: which of the target's tokens a head is taught.

The last matrix is most of the work of a step, and most tokens are never seen in answers, so the
frequent ones alone are scored: by the loss of every head, and by a head of its own in drafting too.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor


class DraftVocabulary:
    """Some of the ids of the target, or all of them.

    target_ids: int64 [draft_size], ascending; target_size: entries of the target's vocabulary.
    """

    def __init__(self, target_ids: Tensor, target_size: int) -> None:
        self.target_ids = target_ids
        self._draft_ids = torch.full((target_size,), -1, dtype=torch.int64)
        self._draft_ids[target_ids] = torch.arange(len(target_ids))

    @classmethod
    def most_frequent(
        cls,
        texts: Iterable[NDArray[np.int32]],
        draft_size: int,
        target_size: int,
        kept: ArrayLike = (),
    ) -> DraftVocabulary:
        """The ids `kept`, and the most frequent ones of the texts; at equal counts lower ids, which
        tokenizers made by merging give to the more common pairs. Raises ValueError for a size out
        of range."""
        if not 1 <= draft_size <= target_size:
            raise ValueError(
                f"the draft vocabulary is {draft_size}; it must be 1 to {target_size}, the target's"
            )
        counts = _counts(texts, target_size)
        counts[np.asarray(kept, dtype=np.int64)] += counts.max() + 1
        return cls(_highest(counts, draft_size), target_size)

    def reduced(self, texts: Iterable[NDArray[np.int32]], draft_size: int) -> DraftVocabulary:
        """Those of its tokens that are the most frequent in the texts; all, if there are no more
        than that."""
        target_size = len(self._draft_ids)
        counts = _counts(texts, target_size)[self.target_ids.numpy()]
        kept = _highest(counts, draft_size)
        return DraftVocabulary(self.target_ids[kept], target_size)

    @classmethod
    def whole(cls, target_size: int) -> DraftVocabulary:
        """All ids of a target."""
        return cls(torch.arange(target_size), target_size)

    def __len__(self) -> int:
        return len(self.target_ids)

    @property
    def d2t(self) -> Tensor:
        """int64 [draft_size]: what to add to a draft id for the target's id."""
        return self.target_ids - torch.arange(len(self.target_ids))

    def t2d(self, rows: int) -> Tensor:
        """bool [rows], for as many rows as the target's embedding has: whether a token can be
        proposed."""
        kept = torch.zeros(rows, dtype=torch.bool)
        kept[self.target_ids] = True
        return kept

    def draft_ids(self, target_ids: Tensor) -> Tensor:
        """int64, shaped like `target_ids`; -1 for tokens that cannot be proposed."""
        return self._draft_ids[target_ids]


def _counts(texts: Iterable[NDArray[np.int32]], target_size: int) -> NDArray[np.int64]:
    counts = np.zeros(target_size, dtype=np.int64)
    for text in texts:
        counts += np.bincount(text, minlength=target_size)
    return counts


def _highest(counts: NDArray[np.int64], size: int) -> Tensor:
    """Where the highest counts stand, ascending; of equal ones, the first."""
    return torch.from_numpy(np.sort(np.argsort(-counts, kind="stable")[:size]))

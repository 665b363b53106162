"""Owns the way from a document to an example: a prefill by the target gives taps and teacher.

The states are kept (states.py), since later passes and later runs need them again.
"""

from __future__ import annotations

import torch
from torch import Tensor

from forerun.training.corpus import Document
from forerun.training.states import StateStore, states_of
from forerun.training.target import Target
from forerun.training.unroll import Example
from forerun.training.vocabulary import DraftVocabulary


class Examples:
    """Makes examples of documents. store: keeps hidden states, those of states_of(taps); None: they
    are computed each time."""

    def __init__(
        self,
        target: Target,
        vocabulary: DraftVocabulary,
        taps: tuple[int, ...],
        store: StateStore | None = None,
    ) -> None:
        self._target = target
        self._vocabulary = vocabulary
        self._num_taps = len(taps)
        self._wanted = states_of(taps, target.config.num_layers)
        self._teacher = target.head[vocabulary.target_ids]
        self._store = store

    def of(self, document: Document) -> Example:
        """Raises ValueError where the document does not fit into the engine's cache."""
        store = self._store
        states = store.of(document, self._hidden) if store else self._hidden(document)
        ids = torch.from_numpy(document.token_ids).long()
        first = document.num_prompt - 1
        final = states[first:, -1].float()
        return Example(
            embeddings=self._target.embedding[ids].float(),
            taps=states[:, : self._num_taps].float(),
            first=first,
            token_ids=ids,
            labels=self._vocabulary.draft_ids(ids),
            final=final,
            teacher=(final @ self._teacher.T).softmax(-1),
        )

    def _hidden(self, document: Document) -> Tensor:
        """bfloat16 [n, states, hidden]: the taps, the last of all those after the final norm."""
        return self._target.hidden(document.token_ids, self._wanted)

"""Owns the way from a document to an example: a prefill by the target gives taps and teacher.

The hidden states of documents seen lately are kept in memory, since later passes need them again
and the prefill is more than half of a step's work.
"""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor

from forerun.training.corpus import Document
from forerun.training.target import Target
from forerun.training.unroll import Example
from forerun.training.vocabulary import DraftVocabulary


class Examples:
    """Makes examples of documents. cache_bytes: of hidden states to keep."""

    def __init__(
        self,
        target: Target,
        vocabulary: DraftVocabulary,
        taps: tuple[int, ...],
        cache_bytes: int = 0,
    ) -> None:
        self._target = target
        self._vocabulary = vocabulary
        self._num_taps = len(taps)
        layers = target.config.num_layers
        self._wanted = taps if layers in taps else (*taps, layers)
        self._teacher = target.head[vocabulary.target_ids]
        self._room = cache_bytes
        self._states: OrderedDict[int, Tensor] = OrderedDict()

    def of(self, document: Document) -> Example:
        """Raises ValueError where the document does not fit into the engine's cache."""
        states = self._hidden(document)
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
        states = self._states.pop(document.index, None)
        if states is None:
            states = self._target.hidden(document.token_ids, self._wanted)
            self._room -= states.nbytes
        self._states[document.index] = states
        while self._room < 0:
            _, oldest = self._states.popitem(last=False)
            self._room += oldest.nbytes
        return states

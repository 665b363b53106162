"""Outputs of sessions that have ended, for others to look up what followed the same tokens there.

Owns their memory: at most so many tokens, of which the oldest outputs go first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

# Tokens that must match at least: fewer are common to texts that have nothing else in common.
GRAM = 4
# Places kept of each n-gram, the latest, and tokens kept of an output, the first: both bound the
# time that a look-up or an addition takes (about a microsecond a token).
MAX_PLACES = 8
MAX_OUTPUT = 8192

Place = tuple[Sequence[int], int]


class Archive:
    """max_tokens: of all outputs together; each takes about 300 bytes."""

    def __init__(self, max_tokens: int) -> None:
        self._max_tokens = max_tokens
        self._outputs: deque[tuple[int, ...]] = deque()
        self._places: dict[tuple[int, ...], deque[Place]] = {}
        self.size = 0  # tokens

    def add(self, output: Sequence[int]) -> None:
        kept = tuple(output[: min(MAX_OUTPUT, self._max_tokens)])
        if len(kept) <= GRAM:
            return
        self._outputs.append(kept)
        self.size += len(kept)
        for end in range(GRAM, len(kept)):
            places = self._places.setdefault(kept[end - GRAM : end], deque(maxlen=MAX_PLACES))
            places.append((kept, end))
        while self.size > self._max_tokens:
            self._drop_oldest()

    def following(self, tokens: Sequence[int]) -> Sequence[Place]:
        """(output, index of what followed) for the last n-gram of `tokens`, the latest first."""
        if len(tokens) < GRAM:
            return ()
        return tuple(reversed(self._places.get(tuple(tokens[-GRAM:]), ())))

    def _drop_oldest(self) -> None:
        oldest = self._outputs.popleft()
        self.size -= len(oldest)
        for end in range(GRAM, len(oldest)):
            gram = oldest[end - GRAM : end]
            places = self._places.get(gram, deque())
            while places and places[0][0] is oldest:  # the oldest are at the front
                places.popleft()
            if not places:
                self._places.pop(gram, None)

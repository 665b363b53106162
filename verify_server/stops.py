"""Where a generation ends, applied inside an accepted block as if its tokens came one by one.

Knows token ids alone; stop strings are found by whoever has the text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum


class FinishReason(Enum):
    """Why a generation ended."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class StopRule:
    """When a session ends.

    stop_ids: ids that end it, the model's own end-of-sequence ids among them unless they are
    ignored. max_emitted: tokens that it emits at most; max_committed: prompt and output tokens
    together at most.
    """

    stop_ids: frozenset[int]
    max_emitted: int
    max_committed: int

    def remaining(self, emitted: int, committed_len: int) -> int:
        """Tokens that a session in this state may still emit."""
        return min(self.max_emitted - emitted, self.max_committed - committed_len)

    def cut(
        self, block: Sequence[int], emitted: int, committed_len: int
    ) -> tuple[int, FinishReason | None]:
        """How many tokens of `block` are emitted, and why the session ends there, if it does.

        `emitted` and `committed_len` are those before the block. The token that ends the session
        is emitted; nothing after it is. Where it is a stop id and the last allowed token at once,
        the reason is STOP.
        """
        remaining = self.remaining(emitted, committed_len)
        for count, token_id in enumerate(block[:remaining], start=1):
            if token_id in self.stop_ids:
                return count, FinishReason.STOP
        if len(block) >= remaining:
            return remaining, FinishReason.LENGTH
        return len(block), None

"""What waits to be sent to the client of one generation.

Owns the order of pieces and their merging while the reader is slow: what waits is never more than
the output itself.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from forerun.errors import ForerunError
from forerun.stats import SessionStats
from forerun.v1.verify_pb2 import FinishReason


@dataclass(frozen=True, slots=True)
class Final:
    """How a generation ended; fields as in the message of the same name."""

    reason: FinishReason.ValueType
    stats: SessionStats
    time_to_first_token_us: int
    total_us: int


@dataclass(slots=True)
class Chunk:
    """token_ids: of which the first `accepted` were drafted. text: that they complete. final: in
    the last chunk alone."""

    token_ids: list[int] = field(default_factory=list)
    accepted: int = 0
    text: str = ""
    final: Final | None = None


class Output:
    """The chunks of one generation: written by its session, read by its call."""

    def __init__(self) -> None:
        self._chunks: deque[Chunk] = deque()
        self._ready = asyncio.Event()
        self._error: ForerunError | None = None
        self._ended = False

    def put(self, token_ids: list[int], accepted: int, text: str) -> None:
        last = self._chunks[-1] if self._chunks else None
        # Accepted tokens come first in a chunk, so only these two cases merge.
        if last is not None and (accepted == 0 or last.accepted == len(last.token_ids)):
            last.token_ids += token_ids
            last.accepted += accepted
            last.text += text
        else:
            self._chunks.append(Chunk(token_ids, accepted, text))
        self._ready.set()

    def finish(self, text: str, final: Final) -> None:
        """Ends with `text` and `final`, in a chunk that waits or one of their own."""
        if not self._chunks:
            self._chunks.append(Chunk())
        self._chunks[-1].text += text
        self._chunks[-1].final = final
        self._ended = True
        self._ready.set()

    def fail(self, error: ForerunError) -> None:
        """Ends with `error`, once what waits is read."""
        self._error = error
        self._ended = True
        self._ready.set()

    async def chunks(self) -> AsyncIterator[Chunk]:
        """All chunks; raises what `fail` was given. One reader."""
        while True:
            await self._ready.wait()
            while self._chunks:
                yield self._chunks.popleft()
            if self._error is not None:
                raise self._error
            if self._ended:
                return
            self._ready.clear()

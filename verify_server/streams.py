"""One draft server's stream: what waits to be written, and how much may be read ahead.

HTTP/2 does not push back in time (a peer that never reads takes thousands of messages), so both
directions are bounded here. All of it belongs to the event loop.
"""

from __future__ import annotations

import asyncio
from collections import deque

from forerun.errors import ForerunError, Overloaded
from forerun.v1 import verify_pb2 as pb

# Entries (opens, trees, cancels), and bytes of them, that were read and not handled yet; beyond
# either the stream is not read. One message may be larger. The engine takes all that has come
# before its next step, in up to 0.1 ms an entry: the others lose no more than a step or two by it.
READ_AHEAD = 1024
READ_AHEAD_BYTES = 16 << 20


class Stream:
    """A queue of responses with a bound in bytes, and an end.

    error: why the server ended the stream, None if it did not. ended: nothing more is taken.
    """

    def __init__(self, number: int, outbox_bytes: int) -> None:
        self.number = number
        self.error: ForerunError | None = None
        # Entries and bytes of each message that is not handled yet, and the sums of both.
        self._ahead: deque[tuple[int, int]] = deque()
        self._ahead_entries = self._ahead_bytes = 0
        self._handled = asyncio.Event()
        self._limit = outbox_bytes
        self._waiting: deque[pb.VerifyResponse] = deque()
        self._bytes = 0
        self.ended = False
        self._changed = asyncio.Event()

    @property
    def waiting_bytes(self) -> int:
        """Bytes that wait to be written."""
        return self._bytes

    async def may_read(self) -> None:
        """Returns once another message may be read."""
        while self._ahead_entries >= READ_AHEAD or self._ahead_bytes >= READ_AHEAD_BYTES:
            self._handled.clear()
            await self._handled.wait()

    def read(self, num_entries: int, num_bytes: int) -> None:
        """Counts a message that was read and is handed on; an empty one is as much as an entry."""
        num_entries = max(1, num_entries)
        self._ahead.append((num_entries, num_bytes))
        self._ahead_entries += num_entries
        self._ahead_bytes += num_bytes

    def handled(self) -> None:
        """Counts that the oldest message that was handed on is handled: they are so in order."""
        num_entries, num_bytes = self._ahead.popleft()
        self._ahead_entries -= num_entries
        self._ahead_bytes -= num_bytes
        self._handled.set()

    def put(self, response: pb.VerifyResponse) -> bool:
        """Queues a response. False where the reader is too slow: the stream has ended then, with
        an error, and what waited is dropped."""
        if self.ended:
            return True
        self._waiting.append(response)
        self._bytes += response.ByteSize()
        self._changed.set()
        # One message may be larger than the bound; it alone is no sign of a slow reader.
        if self._bytes <= self._limit or len(self._waiting) == 1:
            return True
        self._waiting.clear()
        self._bytes = 0
        self.end(
            Overloaded(f"more than {self._limit} bytes wait to be read; read the stream faster")
        )
        return False

    def end(self, error: ForerunError | None = None) -> None:
        """Nothing more is queued; what waits is still written."""
        if not self.ended:
            self.ended = True
            self.error = error
            self._changed.set()

    async def next(self) -> pb.VerifyResponse | None:
        """The next response to write, None at the end."""
        while not self._waiting:
            if self.ended:
                return None
            self._changed.clear()
            await self._changed.wait()
        response = self._waiting.popleft()
        self._bytes -= response.ByteSize()
        return response

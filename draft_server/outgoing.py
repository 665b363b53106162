"""What waits to be written on the stream to the verify server.

Owns the batching: everything that is ready goes into one message, as far as the limits allow.
"""

from __future__ import annotations

import asyncio

from forerun.v1 import verify_pb2

# A token id takes at most five bytes as a varint; the rest of an Open is small but for its stops.
BYTES_PER_ID = 5


class Outgoing:
    """A queue of what sessions have to say. All methods are for one event loop.

    max_entries: opens in one message, and so for trees and for cancels; Limits.max_entries.
    instance: of the server that they are meant for, GetTargetInfoResponse.instance.
    """

    def __init__(self, max_entries: int, instance: str = "") -> None:
        self._max_entries = max_entries
        self._instance = instance
        self._opens: dict[int, verify_pb2.Open] = {}
        self._trees: list[verify_pb2.SessionTree] = []
        self._cancels: list[int] = []
        self._ready = asyncio.Event()
        self._closed = False

    def open(self, message: verify_pb2.Open) -> None:
        self._opens[message.session] = message
        self._ready.set()

    def tree(self, message: verify_pb2.SessionTree) -> None:
        self._trees.append(message)
        self._ready.set()

    def cancel(self, number: int) -> bool:
        """Whether the server is told: of a session whose Open still waits it hears nothing, since
        a cancel that overtook it would end nothing."""
        if self._opens.pop(number, None) is not None:
            return False
        self._cancels.append(number)
        self._ready.set()
        return True

    def close(self) -> None:
        """Nothing follows what is queued."""
        self._closed = True
        self._ready.set()

    async def take(self, max_bytes: int) -> verify_pb2.VerifyRequest | None:
        """Everything that waits, once anything does; None at the end. Entries beyond the limit and
        prompts beyond `max_bytes` wait for the next message, but one goes in any case."""
        while True:
            await self._ready.wait()
            if self._closed or self._opens or self._trees or self._cancels:
                break
            self._ready.clear()  # what was there has been cancelled
        limit = self._max_entries
        request = verify_pb2.VerifyRequest(
            trees=self._trees[:limit],
            cancels=[verify_pb2.Cancel(session=number) for number in self._cancels[:limit]],
        )
        del self._trees[:limit], self._cancels[:limit]
        size = 0
        for number, message in list(self._opens.items()):
            size += BYTES_PER_ID * len(message.prompt_token_ids)
            if request.opens and (size > max_bytes or len(request.opens) == limit):
                break
            request.opens.append(self._opens.pop(number))
            request.instance = self._instance
        if not (self._opens or self._trees or self._cancels or self._closed):
            self._ready.clear()
        empty = not (request.opens or request.trees or request.cancels)
        return None if empty and self._closed else request

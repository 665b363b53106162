"""What waits for a slow reader is bounded, and an end comes after what waits."""

from __future__ import annotations

import asyncio

from forerun.errors import Overloaded
from forerun.v1 import verify_pb2 as pb
from verify_server.streams import READ_AHEAD, READ_AHEAD_BYTES, Stream


def response(size: int) -> pb.VerifyResponse:
    return pb.VerifyResponse(hidden_states=[pb.HiddenStates(data=b"x" * size)])


async def test_what_waits_is_written_before_the_end() -> None:
    stream = Stream(1, outbox_bytes=1000)
    assert stream.put(response(10))
    assert stream.put(response(20))
    stream.end()
    assert stream.put(response(30)), "nothing is taken any more, and nothing complains"
    sizes = []
    while (message := await stream.next()) is not None:
        sizes.append(len(message.hidden_states[0].data))
    assert sizes == [10, 20]
    assert stream.error is None


async def test_more_than_the_bound_ends_the_stream_and_frees_what_waits() -> None:
    stream = Stream(1, outbox_bytes=100)
    assert stream.put(response(60))
    assert not stream.put(response(60))
    assert stream.waiting_bytes == 0
    assert stream.ended
    assert isinstance(stream.error, Overloaded)
    assert await stream.next() is None


async def test_one_large_message_is_no_sign_of_a_slow_reader() -> None:
    stream = Stream(1, outbox_bytes=100)
    assert stream.put(response(500))
    assert await stream.next() is not None
    assert stream.waiting_bytes == 0
    assert stream.put(response(500))


async def test_reading_ahead_is_bounded_in_entries_and_in_bytes() -> None:
    for count, entries, size in (
        (READ_AHEAD, 1, 1),
        (READ_AHEAD, 0, 0),
        (2, READ_AHEAD // 2, 1),
        (1, 2 * READ_AHEAD, 1),
        (2, 1, READ_AHEAD_BYTES // 2),
        (1, 1, 2 * READ_AHEAD_BYTES),
    ):
        stream = Stream(1, outbox_bytes=100)
        for _ in range(count):
            await asyncio.wait_for(stream.may_read(), 1)
            stream.read(entries, size)
        reading = asyncio.create_task(stream.may_read())
        await asyncio.sleep(0)
        assert not reading.done()
        stream.handled()
        await asyncio.wait_for(reading, 1)

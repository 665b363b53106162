"""Whatever is ready goes into one message, as far as its size allows."""

from __future__ import annotations

import asyncio

from draft_server.outgoing import Outgoing
from forerun.v1 import verify_pb2


async def test_one_message_takes_everything() -> None:
    outgoing = Outgoing(100)
    for number in range(3):
        outgoing.tree(verify_pb2.SessionTree(session=number))
        outgoing.open(verify_pb2.Open(session=10 + number, prompt_token_ids=[1, 2]))
        outgoing.cancel(20 + number)
    request = await outgoing.take(1000)
    assert request is not None
    assert [tree.session for tree in request.trees] == [0, 1, 2]
    assert [message.session for message in request.opens] == [10, 11, 12]
    assert [cancel.session for cancel in request.cancels] == [20, 21, 22]


async def test_long_prompts_take_a_message_each() -> None:
    outgoing = Outgoing(100)
    for number in range(3):
        outgoing.open(verify_pb2.Open(session=number, prompt_token_ids=[1] * 100))
    sizes = []
    for _ in range(3):
        request = await outgoing.take(600)
        assert request is not None
        sizes.append(len(request.opens))
    assert sizes == [1, 1, 1]


async def test_waits_for_something_and_ends_once_closed() -> None:
    outgoing = Outgoing(100)
    taking = asyncio.create_task(outgoing.take(1000))
    await asyncio.sleep(0)
    assert not taking.done()
    outgoing.cancel(1)
    assert (await taking) is not None
    outgoing.cancel(2)
    outgoing.close()
    assert (await outgoing.take(1000)) is not None, "what is queued still goes"
    assert (await outgoing.take(1000)) is None


async def test_a_cancel_does_not_overtake_the_open_that_it_is_for() -> None:
    outgoing = Outgoing(100)
    for number in range(3):
        outgoing.open(verify_pb2.Open(session=number, prompt_token_ids=[1] * 100))
    first = await outgoing.take(600)
    assert first is not None and [message.session for message in first.opens] == [0]
    assert outgoing.cancel(0), "it is out"
    assert not outgoing.cancel(1), "nobody has heard of it"
    second = await outgoing.take(600)
    assert second is not None
    assert [message.session for message in second.opens] == [2]
    assert [cancel.session for cancel in second.cancels] == [0]


async def test_nothing_is_sent_where_all_that_waited_was_cancelled() -> None:
    outgoing = Outgoing(100)
    outgoing.open(verify_pb2.Open(session=1, prompt_token_ids=[1]))
    outgoing.cancel(1)
    taking = asyncio.create_task(outgoing.take(1000))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not taking.done()
    outgoing.cancel(2)
    request = await taking
    assert request is not None and not request.opens


async def test_entries_beyond_the_limit_take_the_next_messages_in_order() -> None:
    outgoing = Outgoing(2)
    for number in range(5):
        outgoing.tree(verify_pb2.SessionTree(session=number))
        outgoing.open(verify_pb2.Open(session=10 + number, prompt_token_ids=[1]))
    for number in range(3):
        outgoing.cancel(20 + number)
    outgoing.close()
    taken = []
    while (request := await outgoing.take(1000)) is not None:
        fields = (request.opens, request.trees, request.cancels)
        taken.append([[entry.session for entry in field] for field in fields])
    assert taken == [
        [[10, 11], [0, 1], [20, 21]],
        [[12, 13], [2, 3], [22]],
        [[14], [4], []],
    ]

"""Chunks wait for a slow reader in the order and the form that the protocol promises."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draft_server.output import Chunk, Final, Output
from forerun.errors import Unavailable
from forerun.stats import SessionStats
from forerun.v1.verify_pb2 import FinishReason

FINAL = Final(FinishReason.FINISH_REASON_STOP, SessionStats(), 1, 2)


async def read(output: Output) -> list[Chunk]:
    return [chunk async for chunk in output.chunks()]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 1)), max_size=12))
def test_merged_chunks_keep_order_and_accepted_tokens_first(sizes: list[tuple[int, int]]) -> None:
    """Each token says whether it was accepted: even ones were."""
    output, expected, counter = Output(), [], 0
    for accepted, bonus in sizes:
        block = []
        for index in range(accepted + bonus):
            block.append(2 * counter + (index >= accepted))
            counter += 1
        expected += block
        output.put(list(block), accepted, "x" * len(block))
    output.finish("!", FINAL)
    chunks = asyncio.run(read(output))
    assert [token for chunk in chunks for token in chunk.token_ids] == expected
    assert "".join(chunk.text for chunk in chunks) == "x" * len(expected) + "!"
    for chunk in chunks:
        assert all(token % 2 == 0 for token in chunk.token_ids[: chunk.accepted])
        assert all(token % 2 == 1 for token in chunk.token_ids[chunk.accepted :])
    assert [chunk.final for chunk in chunks] == [None] * (len(chunks) - 1) + [FINAL]


async def test_plain_tokens_merge_while_nobody_reads() -> None:
    output = Output()
    for token in range(1000):
        output.put([token], 0, "x")
    output.finish("", FINAL)
    [chunk] = await read(output)
    assert chunk.token_ids == list(range(1000))


async def test_an_error_comes_after_what_waits() -> None:
    output = Output()
    output.put([1], 0, "a")
    output.fail(Unavailable("gone"))
    chunks = output.chunks()
    assert (await anext(chunks)).token_ids == [1]
    with pytest.raises(Unavailable):
        await anext(chunks)

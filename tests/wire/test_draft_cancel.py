"""A client that goes away frees both servers; one that reads slowly costs no one else."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import sys
from collections.abc import Sequence

import grpc
import pytest

from draft_server.drafters.base import DraftState
from forerun.errors import DeadlineExceeded
from forerun.tree import Budget, Tree
from forerun.v1 import generate_pb2
from forerun.v1.generate_pb2_grpc import GenerateServiceStub
from tests.fixtures.drafting import (
    Pair,
    ScriptedDrafter,
    alphabet,
    drafting_pair,
    eventually,
    following,
)
from tests.fixtures.scripted_target import decode_plainly
from tests.fixtures.scripted_verifier import Live

PROMPT = "hello a"

READS_THREE_TOKENS_AND_WAITS = """
import sys
from forerun.client import Client
with Client(sys.argv[1]) as client:
    for count, chunk in enumerate(client.generate("hello a", max_tokens=1900, plain=False)):
        print(count, flush=True)
"""


async def slowly(live: Live) -> None:
    await asyncio.sleep(0.002)


async def cancelled_by_call(pair: Pair) -> None:
    stream = pair.client.generate(PROMPT, max_tokens=1900)
    for _ in range(3):
        await anext(stream)
    stream.cancel()


async def left_by_break(pair: Pair) -> None:
    count = 0
    async for _ in pair.client.generate(PROMPT, max_tokens=1900):
        count += 1
        if count == 3:
            break


async def killed(pair: Pair) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        READS_THREE_TOKENS_AND_WAITS,
        pair.server.address,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    for _ in range(3):
        assert await process.stdout.readline()
    os.kill(process.pid, signal.SIGKILL)
    await process.wait()
    await process.stdout.read()


@pytest.mark.parametrize("leave", [cancelled_by_call, left_by_break, killed])
async def test_a_client_that_goes_away_frees_both_servers(leave) -> None:  # type: ignore[no-untyped-def]
    drafter = ScriptedDrafter(following(alphabet))
    async with drafting_pair(drafter=drafter, budgets=lambda _: Budget(2, 2)) as pair:
        pair.verifier.before_round = slowly
        await leave(pair)
        await eventually(lambda: not pair.verifier.live, "the verify server ends the session")
        await eventually(lambda: drafter.open_states == 0, "the drafter's state is closed")
        assert pair.verifier.cancels == [1]
        assert pair.sample("sessions") == 0
        assert pair.sample("finished_total", reason="cancelled") == 1
        answer = await pair.client.complete(PROMPT, max_tokens=20)
        assert list(answer.token_ids) == decode_plainly(alphabet, list(PROMPT.encode()), 20)


async def test_a_session_cancelled_before_it_is_open_leaves_nothing() -> None:
    async with drafting_pair() as pair:
        await pair.verifier.stop()
        await eventually(lambda: pair.sample("verifier_up") == 0, "the loss is noticed")
        task = asyncio.create_task(pair.client.complete(PROMPT, max_tokens=5))
        await eventually(lambda: pair.sample("sessions") == 1, "the session waits")
        task.cancel()
        await eventually(lambda: pair.sample("sessions") == 0, "the session is gone")
        await pair.verifier.start(pair.verifier_address)
        await pair.server.wait_ready()
        await pair.client.complete(PROMPT, max_tokens=5)
        assert len(pair.verifier.opens) == 1


async def test_the_deadline_of_the_client_goes_to_the_verify_server() -> None:
    async with drafting_pair() as pair:
        pair.verifier.before_round = slowly
        with pytest.raises(DeadlineExceeded):
            await pair.client.complete(PROMPT, max_tokens=1900, timeout=0.4)
        assert 0 < pair.verifier.opens[0].deadline_ms <= 400
        await eventually(lambda: not pair.verifier.live, "the verify server ends the session")
        async with grpc.aio.insecure_channel(pair.server.address) as channel:
            request = generate_pb2.GenerateRequest(text=PROMPT, max_tokens=3)
            async for _ in GenerateServiceStub(channel).Generate(request):
                pass
        assert pair.verifier.opens[-1].deadline_ms == 0, "none was given"


async def test_a_slow_reader_gets_everything_and_holds_up_nobody() -> None:
    async with drafting_pair(budgets=lambda _: Budget(0, 0)) as pair:
        slow = pair.client.generate(PROMPT, max_tokens=1500)
        first = await anext(slow)
        others = [pair.client.complete(PROMPT, max_tokens=200) for _ in range(3)]
        for answer in await asyncio.gather(*others):
            assert len(answer.token_ids) == 200
        answer = await slow.result()
        expected = decode_plainly(alphabet, list(PROMPT.encode()), 1500)
        assert list(answer.token_ids) == expected and first.token_ids[0] == expected[0]


async def test_drafting_stops_with_the_session() -> None:
    """What was asked of the drafter before the cancel is not sent after it."""
    asked = asyncio.Event()
    loop = asyncio.get_running_loop()

    class Slow(ScriptedDrafter):
        def draft(
            self, batch: Sequence[tuple[DraftState, Budget]], seconds: float = math.inf
        ) -> list[Tree]:
            loop.call_soon_threadsafe(asked.set)
            return super().draft(batch, seconds)

    drafter = Slow(following(alphabet))
    async with drafting_pair(drafter=drafter) as pair:
        stream = pair.client.generate(PROMPT, max_tokens=1900)
        await asked.wait()
        stream.cancel()
        await eventually(lambda: not pair.verifier.live, "the verify server ends the session")
        sent = len(pair.verifier.trees)
        await asyncio.sleep(0.05)
        assert len(pair.verifier.trees) == sent

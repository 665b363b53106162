"""The asynchronous client against a scripted server: what differs from the blocking one."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2_grpc
from grpc_health.v1.health import aio as aio_health
from grpc_status import rpc_status

from forerun import errors
from forerun.client import AsyncClient, Chunk
from forerun.v1 import generate_pb2_grpc
from tests.fixtures import scripted_generate as scripted
from tests.fixtures.scripted_generate import ScriptedGenerate

PATIENCE_S = 20


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ScriptedGenerate]:
    service = ScriptedGenerate()
    grpc_server = service.serve(f"unix:{tmp_path}/socket")
    yield service
    grpc_server.stop(None).wait()


@pytest.fixture
async def client(server: ScriptedGenerate) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(server.address) as client:
        yield client


async def ended(server: ScriptedGenerate) -> bool:
    return await asyncio.to_thread(server.ended.wait, PATIENCE_S)


async def test_chunks_arrive_in_order_and_statistics_follow(client: AsyncClient) -> None:
    stream = client.generate("hi")
    assert await anext(stream) == Chunk((10,), 0, "a")
    rest = [chunk async for chunk in stream]
    assert rest == [Chunk((11, 12), 1, ""), Chunk((13, 2), 2, "é.")]
    assert stream.stats is not None
    assert stream.stats.tokens_per_second == 2.0
    assert await stream.result() == await client.complete("hi")


async def test_other_calls(client: AsyncClient) -> None:
    assert (await client.model_info()).model_name == "tiny"
    assert await client.tokenize("ab") == [97, 98]
    assert await client.detokenize([97, 98]) == "ab"


async def test_cancel_reaches_the_server(client: AsyncClient, server: ScriptedGenerate) -> None:
    server.answer = scripted.endless
    stream = client.generate("hi")
    await anext(stream)
    stream.cancel()
    with pytest.raises(errors.Cancelled):
        async for _ in stream:
            pass
    assert await ended(server)


async def test_cancel_wakes_who_waits(client: AsyncClient, server: ScriptedGenerate) -> None:
    server.answer = scripted.silent
    stream = client.generate("hi")
    waiting = asyncio.create_task(stream.result())
    assert await asyncio.to_thread(server.called.wait, PATIENCE_S)
    stream.cancel()
    with pytest.raises(errors.Cancelled):
        await waiting
    assert await ended(server)


async def test_break_reaches_the_server(client: AsyncClient, server: ScriptedGenerate) -> None:
    server.answer = scripted.endless
    stream = client.generate("hi")
    async for _ in stream:
        break
    assert await ended(server)
    assert stream.token_ids == (7,)


async def test_leaving_a_with_block_reaches_the_server(
    client: AsyncClient, server: ScriptedGenerate
) -> None:
    server.answer = scripted.endless
    async with client.generate("hi") as stream:
        await anext(stream)
    assert await ended(server)


async def test_dropping_a_stream_reaches_the_server(
    client: AsyncClient, server: ScriptedGenerate
) -> None:
    server.answer = scripted.endless
    stream = client.generate("hi")
    await anext(stream)
    del stream
    gc.collect()
    assert await ended(server)


async def test_cancelling_the_task_reaches_the_server_and_stays_a_cancellation(
    client: AsyncClient, server: ScriptedGenerate
) -> None:
    server.answer = scripted.silent
    task = asyncio.create_task(client.complete("hi"))
    assert await asyncio.to_thread(server.called.wait, PATIENCE_S)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await ended(server)


async def test_timeout(client: AsyncClient, server: ScriptedGenerate) -> None:
    server.answer = scripted.silent
    with pytest.raises(errors.DeadlineExceeded):
        await client.complete("hi", timeout=0.1)
    assert await ended(server)


async def test_errors_keep_class_reason_and_fields(
    client: AsyncClient, server: ScriptedGenerate
) -> None:
    server.answer = scripted.failing(errors.InvalidArgument.for_field("stop[0]", "is empty"))
    with pytest.raises(errors.InvalidArgument) as caught:
        await client.complete("hi", stop="")
    assert caught.value.fields[0].field == "stop[0]"
    assert isinstance(caught.value.__cause__, grpc.aio.AioRpcError)


async def test_a_message_beyond_the_limit_names_the_limit(server: ScriptedGenerate) -> None:
    async with AsyncClient(server.address, max_message_bytes=100_000) as client:
        with pytest.raises(errors.MessageTooLarge, match="100000 bytes"):
            await client.complete("x" * 200_000)
        assert (await client.complete("hi")).text == "aé."


async def test_many_streams_run_at_once(client: AsyncClient) -> None:
    results = await asyncio.gather(*(client.complete("hi") for _ in range(16)))
    assert {result.text for result in results} == {"aé."}


class AsyncScripted(generate_pb2_grpc.GenerateServiceServicer):
    """Refuses some calls before the first chunk, as an asyncio server does."""

    def __init__(self, refusals: int) -> None:
        self.refusals = refusals
        self.calls = 0

    async def Generate(self, request: Any, context: Any) -> AsyncIterator[Any]:
        self.calls += 1
        if self.calls <= self.refusals:
            status = errors.to_status(errors.Unavailable("stopping", reason="DRAINING"))
            await context.abort_with_status(rpc_status.to_status(status))
        for message in scripted.five_tokens(ScriptedGenerate(), request, context):
            yield message

    GetModelInfo = Tokenize = Detokenize = None  # type: ignore[assignment]


async def test_an_asyncio_server_is_retried_too_and_tells_its_health(tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/socket"
    service = AsyncScripted(refusals=2)
    server = grpc.aio.server()
    generate_pb2_grpc.add_GenerateServiceServicer_to_server(service, server)
    health_pb2_grpc.add_HealthServicer_to_server(aio_health.HealthServicer(), server)
    server.add_insecure_port(address)
    await server.start()
    async with AsyncClient(address) as client:
        assert (await client.complete("hi")).text == "aé."
        assert service.calls == 3
        assert await client.health() == "SERVING"
    await server.stop(None)

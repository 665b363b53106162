"""The asynchronous client: the twin of `forerun.client.sync`, for one event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio

from forerun.client import health
from forerun.client.base import BaseClient, BaseStream
from forerun.client.connection import Connection, ConnectionOptions
from forerun.client.request import (
    GenerateParams,
    Messages,
    detokenize_request,
    generate_request,
    tokenize_request,
)
from forerun.client.result import Chunk, Generation, ModelInfo
from forerun.errors import Cancelled, from_rpc_error
from forerun.v1 import generate_pb2, generate_pb2_grpc

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack


class AsyncClient(BaseClient):
    """A connection to a draft server from one event loop. Many streams may run at once.

        async with AsyncClient("localhost:50051") as client:
            async for chunk in client.generate("Once upon a time", max_tokens=64):
                print(chunk.text, end="")

    The arguments are those of BaseClient.
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        channel: grpc.aio.Channel | None = None,
        timeout: float | None = 600.0,
        **options: Unpack[ConnectionOptions],
    ) -> None:
        super().__init__(address, channel=channel, timeout=timeout, **options)
        self._stub = generate_pb2_grpc.GenerateServiceStub(self._channel)

    def _open(self, connection: Connection) -> grpc.aio.Channel:
        target, credentials = connection.target, connection.credentials
        if credentials is None:
            return grpc.aio.insecure_channel(target, options=connection.options)
        return grpc.aio.secure_channel(target, credentials, options=connection.options)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the connection, which cancels its streams. A channel of your own stays open."""
        if self._owns_channel:
            await self._channel.close()

    def generate(
        self,
        prompt: str | None = None,
        *,
        timeout: float | None = None,
        **params: Unpack[GenerateParams],
    ) -> AsyncGenerationStream:
        """Starts a generation from a prompt, messages= or token_ids= (see GenerateParams).

        Errors of the server are raised by the stream, not here.
        """
        loop = asyncio.get_running_loop()
        request = generate_request(prompt, **params)
        call = self._stub.Generate(request, **self._call_options(timeout))
        return AsyncGenerationStream(call, loop)

    async def complete(
        self,
        prompt: str | None = None,
        *,
        timeout: float | None = None,
        **params: Unpack[GenerateParams],
    ) -> Generation:
        """The whole answer at once."""
        return await self.generate(prompt, timeout=timeout, **params).result()

    async def model_info(self, *, timeout: float | None = None) -> ModelInfo:
        """Which model answers, and the limits."""
        request = generate_pb2.GetModelInfoRequest()
        return ModelInfo.from_pb(await self._call(self._stub.GetModelInfo, request, timeout))

    async def tokenize(
        self,
        text: str | None = None,
        *,
        messages: Messages | None = None,
        timeout: float | None = None,
    ) -> list[int]:
        """The token ids of a text, or of a conversation through the chat template."""
        request = tokenize_request(text, messages)
        return list((await self._call(self._stub.Tokenize, request, timeout)).token_ids)

    async def detokenize(
        self,
        token_ids: Sequence[int],
        *,
        skip_special_tokens: bool = True,
        timeout: float | None = None,
    ) -> str:
        """The text of token ids."""
        request = detokenize_request(token_ids, skip_special_tokens)
        return str((await self._call(self._stub.Detokenize, request, timeout)).text)

    async def health(self, *, timeout: float | None = None) -> str:
        """The state of the server by grpc.health.v1: "SERVING" or "NOT_SERVING".

        Raises ImportError where grpcio-health-checking is not installed.
        """
        check, request = health.check(self._channel)
        return health.status_name(await self._call(check, request, timeout))

    async def _call(self, method: Any, request: Any, timeout: float | None) -> Any:
        try:
            return await method(request, **self._call_options(timeout))
        except grpc.RpcError as error:
            raise from_rpc_error(error) from error


class AsyncGenerationStream(BaseStream):
    """A running generation: iterate for its chunks, or await the `result()`.

    Leaving an `async for` or an `async with` early cancels the generation on the servers, as do
    cancelling the task and dropping the stream. `await anext(stream)` takes a single chunk and
    leaves it running. After cancel(), iterating raises forerun.errors.Cancelled.
    """

    def __init__(self, call: Any, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(call)
        self._messages = aiter(call)
        self._loop = loop
        self._cancelled = False

    async def __aiter__(self) -> AsyncIterator[Chunk]:
        try:
            while (chunk := await anext(self, None)) is not None:
                yield chunk
        finally:
            self._call.cancel()

    async def __anext__(self) -> Chunk:
        try:
            while (message := await anext(self._messages, None)) is not None:
                chunk = self._transcript.add(message)
                if chunk is not None:
                    return chunk
        except grpc.RpcError as error:
            raise from_rpc_error(error) from error
        except asyncio.CancelledError as error:
            # grpc.aio raises the same for a call and for a task that is cancelled.
            if self._cancelled and not _task_is_cancelled():
                raise Cancelled("the caller cancelled the generation") from error
            raise
        if self._cancelled:
            raise Cancelled("the caller cancelled the generation")
        self._transcript.generation()  # raises where the stream ended without its last message
        raise StopAsyncIteration

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self.cancel()

    def __del__(self) -> None:
        # Not left to grpc, whose versions differ in whether an abandoned call is ever collected:
        # the servers would generate on. The collector may run in any thread.
        if not self._call.done() and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._call.cancel)

    def cancel(self) -> None:
        """Stops the generation on the servers; harmless after its end."""
        self._cancelled = not self._call.done() or self._cancelled
        self._call.cancel()

    async def result(self) -> Generation:
        """Waits for the end and returns all of it, chunks that were iterated before included."""
        async for _ in self:
            pass
        return self._transcript.generation()


def _task_is_cancelled() -> bool:
    task = asyncio.current_task()
    # Python 3.10 cannot tell.
    return bool(task and hasattr(task, "cancelling") and task.cancelling())

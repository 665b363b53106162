"""The blocking client."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import grpc

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
from forerun.errors import from_rpc_error
from forerun.v1 import generate_pb2, generate_pb2_grpc

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack


class Client(BaseClient):
    """A blocking connection to a draft server. Thread-safe; many streams may run at once.

        with Client("localhost:50051") as client:
            for chunk in client.generate("Once upon a time", max_tokens=64):
                print(chunk.text, end="")

    The arguments are those of BaseClient.
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        channel: grpc.Channel | None = None,
        timeout: float | None = 600.0,
        **options: Unpack[ConnectionOptions],
    ) -> None:
        super().__init__(address, channel=channel, timeout=timeout, **options)
        self._stub = generate_pb2_grpc.GenerateServiceStub(self._channel)

    def _open(self, connection: Connection) -> grpc.Channel:
        target, credentials = connection.target, connection.credentials
        if credentials is None:
            return grpc.insecure_channel(target, options=connection.options)
        return grpc.secure_channel(target, credentials, options=connection.options)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connection, which cancels its streams. A channel of your own stays open."""
        if self._owns_channel:
            self._channel.close()

    def generate(
        self,
        prompt: str | None = None,
        *,
        timeout: float | None = None,
        **params: Unpack[GenerateParams],
    ) -> GenerationStream:
        """Starts a generation from a prompt, messages= or token_ids= (see GenerateParams).

        Errors of the server are raised by the stream, not here.
        """
        request = generate_request(prompt, **params)
        return GenerationStream(self._stub.Generate(request, **self._call_options(timeout)))

    def complete(
        self,
        prompt: str | None = None,
        *,
        timeout: float | None = None,
        **params: Unpack[GenerateParams],
    ) -> Generation:
        """The whole answer at once."""
        return self.generate(prompt, timeout=timeout, **params).result()

    def model_info(self, *, timeout: float | None = None) -> ModelInfo:
        """Which model answers, and the limits."""
        request = generate_pb2.GetModelInfoRequest()
        return ModelInfo.from_pb(self._call(self._stub.GetModelInfo, request, timeout))

    def tokenize(
        self,
        text: str | None = None,
        *,
        messages: Messages | None = None,
        timeout: float | None = None,
    ) -> list[int]:
        """The token ids of a text, or of a conversation through the chat template."""
        request = tokenize_request(text, messages)
        return list(self._call(self._stub.Tokenize, request, timeout).token_ids)

    def detokenize(
        self,
        token_ids: Sequence[int],
        *,
        skip_special_tokens: bool = True,
        timeout: float | None = None,
    ) -> str:
        """The text of token ids."""
        request = detokenize_request(token_ids, skip_special_tokens)
        return str(self._call(self._stub.Detokenize, request, timeout).text)

    def health(self, *, timeout: float | None = None) -> str:
        """The state of the server by grpc.health.v1: "SERVING" or "NOT_SERVING".

        Raises ImportError where grpcio-health-checking is not installed.
        """
        check, request = health.check(self._channel)
        return health.status_name(self._call(check, request, timeout))

    def _call(self, method: Any, request: Any, timeout: float | None) -> Any:
        try:
            return method(request, **self._call_options(timeout))
        except grpc.RpcError as error:
            raise from_rpc_error(error) from error


class GenerationStream(BaseStream):
    """A running generation: iterate for its chunks, or take the `result()`.

    Leaving a `for` or a `with` early cancels the generation on the servers, as does dropping the
    stream. `next(stream)` takes a single chunk and leaves it running. After cancel(), iterating
    raises forerun.errors.Cancelled. Iteration belongs to one thread; cancel() may come from any.
    """

    def __iter__(self) -> Iterator[Chunk]:
        try:
            while (chunk := next(self, None)) is not None:
                yield chunk
        finally:
            self.cancel()

    def __next__(self) -> Chunk:
        try:
            while (message := next(self._call, None)) is not None:
                chunk = self._transcript.add(message)
                if chunk is not None:
                    return chunk
        except grpc.RpcError as error:
            raise from_rpc_error(error) from error
        self._transcript.generation()  # raises where the stream ended without its last message
        raise StopIteration

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.cancel()

    def __del__(self) -> None:
        # Not left to grpc, whose versions differ in whether an abandoned call is ever collected:
        # the servers would generate on.
        self.cancel()

    def result(self) -> Generation:
        """Waits for the end and returns all of it, chunks that were iterated before included."""
        for _ in self:
            pass
        return self._transcript.generation()

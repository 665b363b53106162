"""What the blocking and the asynchronous client have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from forerun.client.connection import Connection, ConnectionOptions
from forerun.client.result import GenerationStats, Transcript

if TYPE_CHECKING:
    from typing_extensions import Unpack


class BaseClient(ABC):
    """A channel, the metadata and the timeout of its calls.

    address: "host:port" or "unix:/path"; default FORERUN_ADDRESS. `options` are those of
    ConnectionOptions. channel: one of your own, with its own address, credentials and options, that
    stays open. timeout: seconds that a call may take where it names none; None for no limit.

    Calls raise the classes of `forerun.errors`, with the grpc.RpcError as their cause.
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        channel: Any = None,
        timeout: float | None = 600.0,
        **options: Unpack[ConnectionOptions],
    ) -> None:
        self._metadata: tuple[tuple[str, str], ...] = ()
        self._owns_channel = channel is None
        if channel is None:
            connection = Connection.resolve(address, **options)
            channel = self._open(connection)
            self._metadata = connection.metadata
        elif address is not None or options:
            raise ValueError("a channel has its own address and options; give nothing else")
        self._channel = channel
        self._timeout = timeout

    @abstractmethod
    def _open(self, connection: Connection) -> Any:
        """A channel of the client's own kind."""

    def _call_options(self, timeout: float | None) -> dict[str, Any]:
        seconds = self._timeout if timeout is None else timeout
        return {"timeout": seconds, "metadata": self._metadata}


class BaseStream:
    """A running call, and what has arrived of it."""

    def __init__(self, call: Any) -> None:
        self._call = call
        self._transcript = Transcript()

    def cancel(self) -> None:
        """Stops the generation on the servers; harmless after its end."""
        self._call.cancel()

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The tokens that have arrived."""
        return tuple(self._transcript.token_ids)

    @property
    def text(self) -> str:
        """The text that has arrived."""
        return self._transcript.text

    @property
    def stats(self) -> GenerationStats | None:
        """The statistics; None until the end."""
        return self._transcript.generation().stats if self._transcript.complete else None

    @property
    def finish_reason(self) -> str | None:
        """As in Generation; None until the end."""
        return self._transcript.generation().finish_reason if self._transcript.complete else None

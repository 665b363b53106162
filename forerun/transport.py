"""How the two servers reach each other and the world: ports, TLS, tokens and gRPC options.

Owns what both servers and the channels between them must agree on. Knows no service.
"""

from __future__ import annotations

import hmac
import logging
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import grpc
from grpc_status import rpc_status

from forerun.address import UNIX, is_local
from forerun.errors import Unauthenticated, to_status

logger = logging.getLogger(__name__)

AUTHORIZATION = "authorization"
# Probes carry no credentials.
HEALTH_PREFIX = "/grpc.health.v1.Health/"
KEEPALIVE_MS = 30_000

Options: TypeAlias = list[tuple[str, Any]]
_Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


def server_options(max_message_bytes: int) -> Options:
    """Options of a server. A port that is taken is an error; clients may ping during a long step,
    when no data flows."""
    return [
        ("grpc.so_reuseport", 0),
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.max_send_message_length", max_message_bytes),
        ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
        ("grpc.keepalive_permit_without_calls", 1),
    ]


def channel_options(max_message_bytes: int) -> Options:
    """Options of a channel to such a server."""
    return [
        # By default a server that was away for a while stays so for up to two minutes.
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 1000),
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.max_send_message_length", max_message_bytes),
        ("grpc.keepalive_time_ms", KEEPALIVE_MS),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
    ]


@dataclass(frozen=True, slots=True)
class Security:
    """What a server shows to its callers and wants from them.

    certificate and key: PEM bytes, both or neither. ca: PEM bytes; if given, callers must show a
    certificate that it signed. token: what callers must send as "authorization: Bearer …".
    """

    certificate: bytes | None = None
    key: bytes | None = None
    ca: bytes | None = None
    token: str | None = None

    @classmethod
    def load(
        cls,
        *,
        tls_cert: str | None = None,
        tls_key: str | None = None,
        tls_ca: str | None = None,
        token_file: str | None = None,
    ) -> Security:
        """Reads the files; raises OSError, or ValueError where the token is empty."""
        token = read_token(token_file) if token_file else None
        certificate, key, ca = (
            Path(path).read_bytes() if path else None for path in (tls_cert, tls_key, tls_ca)
        )
        return cls(certificate, key, ca, token)

    def check(self, address: str) -> None:
        """Raises ValueError where a token would travel in the clear between machines; warns where
        anybody on the network may call."""
        if self.certificate is not None or is_local(address):
            return
        if self.token is not None:
            raise ValueError(
                f"a token on {address} would be sent unencrypted; add --tls-cert and --tls-key,"
                " or listen on a loopback address or a Unix socket"
            )
        logger.warning(
            "%s is open to the network without encryption or token; see --tls-cert and"
            " --token-file",
            address,
        )

    def interceptors(self) -> list[grpc.aio.ServerInterceptor]:
        """Interceptors of a server."""
        return [TokenInterceptor(self.token)] if self.token is not None else []

    def bind(self, server: grpc.aio.Server, address: str) -> str:
        """Adds the port and returns the address with the port that was bound (port 0: any).

        Raises ValueError as `check` does, and RuntimeError where the address cannot be bound, with
        the likely reason.
        """
        self.check(address)
        _check_free(address)
        try:
            port = self._add_port(server, address)
        except RuntimeError as error:
            reason = _why_not_bound(address)
            if reason is None and self.certificate is not None:
                reason = (
                    "the certificate, the key or the CA is not what TLS takes; see whether"
                    " --tls-cert, --tls-key and --tls-ca name the right PEM files"
                )
            raise RuntimeError(f"cannot listen on {address}: {reason or error}") from error
        if address.startswith(UNIX):
            return address
        return f"{address.rpartition(':')[0]}:{port}"

    def _add_port(self, server: grpc.aio.Server, address: str) -> int:
        if self.certificate is None or self.key is None:
            return server.add_insecure_port(address)
        credentials = grpc.ssl_server_credentials(
            [(self.key, self.certificate)], self.ca, require_client_auth=self.ca is not None
        )
        return server.add_secure_port(address, credentials)


def _socket_path(address: str) -> str | None:
    """The file of a Unix socket's address; None for any other."""
    scheme, _, path = address.partition(":")
    return path.removeprefix("//") if scheme == "unix" else None


def _why_not_bound(address: str) -> str | None:
    """What the system says against the address itself, None where it has nothing against it. gRPC
    tells it to its own log alone."""
    path = _socket_path(address)
    try:
        if path is not None:
            with socket.socket(socket.AF_UNIX) as probe:
                probe.bind(path)
            Path(path).unlink()
        elif not address.startswith(UNIX):
            host, _, port = address.rpartition(":")
            found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)
            family, kind, _, _, where = found[0]
            with socket.socket(family, kind) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(where)
    except OSError as error:
        return error.strerror or str(error)
    return None


def _check_free(address: str) -> None:
    """Raises RuntimeError where a server listens on the Unix socket already: gRPC would put its own
    socket in that one's place, and leave the server there without callers."""
    path = _socket_path(address)
    if path is None:
        return
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(path)
        except OSError:
            return  # nobody there; what is wrong with the path otherwise is gRPC's to tell
    raise RuntimeError(f"{address} is taken: another server listens there")


class TokenInterceptor(grpc.aio.ServerInterceptor):
    """Refuses every call without the token, health checks excepted."""

    def __init__(self, token: str) -> None:
        self._expected = f"Bearer {token}".encode()
        self._refusal: _Handler = grpc.stream_stream_rpc_method_handler(_refuse)

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[_Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> _Handler | None:
        metadata = dict(handler_call_details.invocation_metadata or ())
        given = metadata.get(AUTHORIZATION, "")
        given_bytes = given if isinstance(given, bytes) else given.encode()
        allowed = hmac.compare_digest(given_bytes, self._expected)
        if allowed or handler_call_details.method.startswith(HEALTH_PREFIX):
            return await continuation(handler_call_details)
        return self._refusal


async def _refuse(requests: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
    error = Unauthenticated("the token is missing or wrong; send 'authorization: Bearer TOKEN'")
    await context.abort_with_status(rpc_status.to_status(to_status(error)))


def read_token(path: str) -> str:
    """The token in a file, without the white space around it; raises ValueError if none is left."""
    token = Path(path).read_text(encoding="utf-8").strip()
    if not token:
        raise ValueError(f"{path} holds no token")
    return token


def bearer_metadata(token: str | None) -> tuple[tuple[str, str], ...]:
    """The metadata of a call that shows `token`."""
    return ((AUTHORIZATION, f"Bearer {token}"),) if token else ()


def open_channel(
    address: str,
    *,
    max_message_bytes: int,
    ca: bytes | None = None,
    certificate: bytes | None = None,
    key: bytes | None = None,
) -> grpc.aio.Channel:
    """A channel to a server: with TLS where `ca` (who signed its certificate, PEM) is given;
    `certificate` and `key` are shown to a server that asks for them."""
    options = channel_options(max_message_bytes)
    if ca is None:
        return grpc.aio.insecure_channel(address, options=options)
    credentials = grpc.ssl_channel_credentials(ca, key, certificate)
    return grpc.aio.secure_channel(address, credentials, options=options)

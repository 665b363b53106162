"""Where the server is and how to reach it: what the sync and the async client share before a call.

Owns addresses, TLS, tokens and channel options. Knows nothing of requests.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import grpc

from forerun import __version__
from forerun.address import check_port, is_local

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

ADDRESS_VARIABLE = "FORERUN_ADDRESS"
TOKEN_VARIABLE = "FORERUN_TOKEN"
MAX_MESSAGE_BYTES = 64 << 20
# gRPC clamps retryPolicy.maxAttempts to 5.
MAX_RETRIES = 4


@dataclass(frozen=True, slots=True)
class TLS:
    """PEM files. `ca` holds the roots to trust (the system's own if None); `cert` and `key` are the
    client's, where the server asks for them."""

    ca: str | os.PathLike[str] | None = None
    cert: str | os.PathLike[str] | None = None
    key: str | os.PathLike[str] | None = None

    def credentials(self) -> grpc.ChannelCredentials:
        """Reads the files; raises OSError where one is missing."""
        if (self.cert is None) != (self.key is None):
            raise ValueError("TLS: cert and key belong together; give both or none")
        ca, cert, key = (
            None if path is None else Path(path).read_bytes()
            for path in (self.ca, self.cert, self.key)
        )
        return grpc.ssl_channel_credentials(ca, key, cert)


@dataclass(frozen=True, slots=True)
class KeepAlive:
    """Pings on a connection with open calls, which find a dead peer. Servers refuse an interval
    below 10 seconds."""

    interval_s: float = 30.0
    timeout_s: float = 10.0


class ConnectionOptions(TypedDict, total=False):
    """Keyword arguments of both clients.

    token: sent as `authorization: Bearer`; default FORERUN_TOKEN.
    tls: TLS() or with files of your own; default plaintext.
    credentials: channel credentials of your own, in place of `tls`.
    keepalive: default KeepAlive().
    max_retries: 0 to 4 further attempts, with jittered backoff, where the server is UNAVAILABLE and
      nothing has arrived yet; default 2.
    max_message_bytes: of one message either way; default 64 MiB.
    """

    token: str | None
    tls: TLS | None
    credentials: grpc.ChannelCredentials | None
    keepalive: KeepAlive
    max_retries: int
    max_message_bytes: int


@dataclass(frozen=True, slots=True)
class Connection:
    """What it takes to open a channel, and the metadata of every call on it."""

    target: str
    credentials: grpc.ChannelCredentials | None
    options: tuple[tuple[str, Any], ...]
    metadata: tuple[tuple[str, str], ...]

    @classmethod
    def resolve(cls, address: str | None, **options: Unpack[ConnectionOptions]) -> Self:
        """Fills in what the environment says; raises ValueError for options that contradict each
        other, for a port that no address has, and where a token would travel in the clear."""
        target = address or os.environ.get(ADDRESS_VARIABLE)
        if not target:
            raise ValueError(
                f"no address: pass one (host:port, unix:/path) or set {ADDRESS_VARIABLE}"
            )
        check_port(target)
        tls, credentials = options.get("tls"), options.get("credentials")
        if tls and credentials:
            raise ValueError("tls and credentials exclude each other; give one")
        token = (options.get("token") or os.environ.get(TOKEN_VARIABLE, "")).strip()
        local = is_local(target)
        if token and not (tls or credentials or local):
            raise ValueError(
                f"the token would travel to {target} in the clear; use tls=TLS(), a unix socket or "
                "a loopback address"
            )
        return cls(
            target=target,
            credentials=tls.credentials() if tls else credentials,
            options=channel_options(
                keepalive=options.get("keepalive", KeepAlive()),
                max_retries=options.get("max_retries", 2),
                max_message_bytes=options.get("max_message_bytes", MAX_MESSAGE_BYTES),
                http_proxy=not local,
            ),
            metadata=(("authorization", f"Bearer {token}"),) if token else (),
        )


def channel_options(
    *, keepalive: KeepAlive, max_retries: int, max_message_bytes: int, http_proxy: bool
) -> tuple[tuple[str, Any], ...]:
    """Options of a gRPC channel."""
    if not 0 <= max_retries <= MAX_RETRIES:
        raise ValueError(f"max_retries is {max_retries}; it must be in 0..{MAX_RETRIES}")
    return (
        ("grpc.primary_user_agent", f"forerun/{__version__}"),
        ("grpc.max_send_message_length", max_message_bytes),
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.keepalive_time_ms", int(keepalive.interval_s * 1000)),
        ("grpc.keepalive_timeout_ms", int(keepalive.timeout_s * 1000)),
        # By default a restarted server stays unreachable for up to two minutes.
        ("grpc.initial_reconnect_backoff_ms", 200),
        ("grpc.max_reconnect_backoff_ms", 2000),
        ("grpc.enable_http_proxy", int(http_proxy)),
        ("grpc.enable_retries", int(max_retries > 0)),
        # A request beyond this buffer is never retried, and the default is 256 KiB a call.
        ("grpc.per_rpc_retry_buffer_size", max_message_bytes),
        ("grpc.service_config", json.dumps(_service_config(max_retries))),
    )


def _service_config(max_retries: int) -> dict[str, Any]:
    # gRPC's own retries: UNAVAILABLE alone (AIP-194), and never once a response has begun.
    method: dict[str, Any] = {
        "name": [{"service": "forerun.v1.GenerateService"}, {"service": "grpc.health.v1.Health"}]
    }
    if max_retries:
        method["retryPolicy"] = {
            "maxAttempts": max_retries + 1,
            "initialBackoff": "0.1s",
            "maxBackoff": "2s",
            "backoffMultiplier": 3,
            "retryableStatusCodes": ["UNAVAILABLE"],
        }
    return {"methodConfig": [method]}

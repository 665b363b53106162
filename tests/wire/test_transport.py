"""Options that gRPC knows, connections that live while nothing is said, and addresses in use."""

from __future__ import annotations

import asyncio
import re
import socket
from pathlib import Path

import grpc
import pytest
from grpc._cython import cygrpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health_aio
from prometheus_client import CollectorRegistry

from forerun.client import connection
from forerun.obs.metrics_port import serve_metrics
from forerun.obs.process_info import server_registry
from forerun.obs.scrape import scrape
from forerun.transport import Options, Security, channel_options, server_options

SPEED = 30  # gRPC pings once a second at most


def test_grpc_knows_every_option() -> None:
    # It passes over a name that it does not know without a word.
    compiled = Path(cygrpc.__file__).read_bytes()
    options = [
        *server_options(1 << 20),
        *channel_options(1 << 20),
        *connection.channel_options(
            keepalive=connection.KeepAlive(), max_retries=1, max_message_bytes=1, http_proxy=True
        ),
    ]
    assert [name for name, _ in options if name.encode() not in compiled] == []


def test_channels_soon_try_again_to_reach_a_server_that_was_away() -> None:
    options = dict(channel_options(1 << 20))
    assert options["grpc.max_reconnect_backoff_ms"] <= 1000


async def test_a_stream_on_which_nothing_is_said_stays_open(tmp_path: Path) -> None:
    server = grpc.aio.server(options=_faster(server_options(1 << 20)))
    health_pb2_grpc.add_HealthServicer_to_server(health_aio.HealthServicer(), server)
    address = f"unix:{tmp_path}/socket"
    server.add_insecure_port(address)
    await server.start()
    channel = grpc.aio.insecure_channel(address, options=_faster(channel_options(1 << 20)))
    try:
        call = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        await call.read()
        silence = asyncio.ensure_future(call.read())
        ended, _ = await asyncio.wait({silence}, timeout=4.5)
        assert not ended, call
        silence.cancel()
    finally:
        await channel.close()
        await server.stop(None)


async def test_a_unix_socket_is_not_taken_from_a_server_that_listens(tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/socket"
    first = grpc.aio.server()
    assert Security().bind(first, address) == address
    await first.start()
    with pytest.raises(RuntimeError, match="is taken"):
        Security().bind(grpc.aio.server(), address)
    await first.stop(None)
    # What a server that was killed left behind is in nobody's way.
    left = socket.socket(socket.AF_UNIX)
    left.bind(f"{tmp_path}/left")
    left.close()
    second = grpc.aio.server()
    Security().bind(second, f"unix:{tmp_path}/left")
    await second.start()
    await second.stop(None)


async def test_an_address_that_cannot_be_had_says_why(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for address, security, reason in (
            (f"127.0.0.1:{port}", Security(), "Address already in use"),
            (f"unix:{tmp_path}/none/socket", Security(), "No such file or directory"),
            (f"unix:{tmp_path}/{'x' * 120}", Security(), "path too long"),
            (f"unix:{tmp_path}", Security(), "in use"),
            ("127.0.0.1:0", Security(b"a key", b"a certificate"), "--tls-cert, --tls-key"),
            (f"unix:{tmp_path}/tls", Security(b"a key", b"a certificate"), "--tls-cert"),
            (f"127.0.0.1:{port}", Security(b"a key", b"a certificate"), "Address already in use"),
        ):
            with pytest.raises(RuntimeError) as caught:
                security.bind(grpc.aio.server(options=server_options(1 << 20)), address)
            assert str(caught.value).startswith(f"cannot listen on {address}: ")
            assert reason in str(caught.value)
    assert _names(tmp_path) == []


def has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


def test_a_port_of_metrics_that_is_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        message = f"cannot serve metrics on 127.0.0.1:{port}: Address already in use"
        with pytest.raises(RuntimeError, match=message):
            serve_metrics(CollectorRegistry(), port, "unix:/tmp/socket")


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
def test_the_address_of_metrics_can_be_used_as_it_is_told() -> None:
    server, address = serve_metrics(server_registry(), 0, "[::1]:50051")
    try:
        assert address == f"[::1]:{server.server_port}"
        assert scrape(address, 5.0).value("forerun_build_info") == 1
        message = re.escape(f"cannot serve metrics on {address}: Address already in use")
        with pytest.raises(RuntimeError, match=message):
            serve_metrics(CollectorRegistry(), server.server_port, "[::1]:50051")
    finally:
        server.shutdown()
        server.server_close()


def _names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def _faster(options: Options) -> Options:
    """The options with all their times SPEED times shorter: two minutes are four seconds."""
    return [(name, value // SPEED if name.endswith("_ms") else value) for name, value in options]

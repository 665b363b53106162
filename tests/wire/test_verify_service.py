"""The service around the rounds: health, reflection, metrics, tokens, TLS, sockets and draining."""

from __future__ import annotations

import asyncio
import logging
import shutil
import subprocess
import urllib.request
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from forerun.errors import from_rpc_error
from forerun.transport import Security, bearer_metadata, open_channel
from forerun.tree import Tree
from forerun.v1 import verify_pb2 as pb
from tests.fixtures.scripted_draft import ScriptedDraft
from tests.fixtures.scripted_target import ScriptedTarget, decode_plainly, hash_next
from tests.fixtures.verify_server import scripted_server

NEXT = hash_next(1000)
SERVICE = "forerun.v1.VerifyService"
Serving = health_pb2.HealthCheckResponse


async def status(channel: grpc.aio.Channel, service: str = "") -> int:
    stub = health_pb2_grpc.HealthStub(channel)
    reply = await stub.Check(health_pb2.HealthCheckRequest(service=service))
    return int(reply.status)


async def test_not_serving_until_warm() -> None:
    target = ScriptedTarget(NEXT)
    target.hold()
    starting: list[int] = []

    async def probe() -> None:
        await asyncio.to_thread(target.wait_entered)
        async with open_channel(address, max_message_bytes=1 << 20) as channel:
            starting.extend([await status(channel), await status(channel, SERVICE)])
        target.open_gate()

    # The port must be known before the server is up, so it is a socket.
    address = "unix-abstract:forerun-test-warm"
    probing = asyncio.create_task(probe())
    async with scripted_server(target, listen=address) as server:
        await probing
        assert starting == [Serving.NOT_SERVING] * 2
        async with open_channel(server.address, max_message_bytes=1 << 20) as channel:
            assert await status(channel) == await status(channel, SERVICE) == Serving.SERVING


async def test_a_failed_warm_up_is_raised() -> None:
    target = ScriptedTarget(NEXT)
    target.fail_with = RuntimeError("no luck")
    with pytest.raises(RuntimeError, match="no luck"):
        async with scripted_server(target):
            pass


async def test_health_info_and_new_streams_answer_during_a_long_forward() -> None:
    target = ScriptedTarget(NEXT)
    async with scripted_server(target, metrics_port=0) as server, ScriptedDraft(
        server.address
    ) as draft:  # fmt: skip
        target.hold()
        session = await draft.open(1, [1, 2, 3], 3)
        await asyncio.to_thread(target.wait_entered)
        assert await status(draft.channel) == Serving.SERVING
        await draft.stub.GetTargetInfo(pb.GetTargetInfoRequest())
        url = f"http://{server.metrics_address}/metrics"
        body = await asyncio.to_thread(lambda: urllib.request.urlopen(url, timeout=10).read())
        assert b"forerun_verify_emitted_total 0.0" in body
        assert not session.opened
        target.open_gate()
        await draft.until_ended(session)


@pytest.mark.parametrize("offered", [True, False])
async def test_reflection_is_offered_unless_switched_off(offered: bool) -> None:
    async with scripted_server(ScriptedTarget(NEXT), reflection=offered) as server, open_channel(
        server.address, max_message_bytes=1 << 20
    ) as channel:  # fmt: skip
        call = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(
            iter([reflection_pb2.ServerReflectionRequest(list_services="")])
        )
        if not offered:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call.read()
            assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
            return
        reply = await call.read()
        assert SERVICE in {service.name for service in reply.list_services_response.service}


async def test_a_taken_port_is_an_error() -> None:
    async with scripted_server(ScriptedTarget(NEXT)) as server:
        with pytest.raises(RuntimeError):
            async with scripted_server(ScriptedTarget(NEXT), listen=server.address):
                pass


async def test_a_unix_socket(tmp_path: Path) -> None:
    async with scripted_server(
        ScriptedTarget(NEXT), listen=f"unix:{tmp_path}/verify"
    ) as server, ScriptedDraft(server.address) as draft:  # fmt: skip
        session = await draft.open(1, [1], 5)
        await draft.until_ended(session)
        assert session.tokens == decode_plainly(NEXT, [1], 5)


async def test_a_token_is_wanted_by_everything_but_health(tmp_path: Path) -> None:
    token_file = tmp_path / "token"
    token_file.write_text("s3cret\n")
    async with scripted_server(ScriptedTarget(NEXT), token_file=str(token_file)) as server:
        for metadata in ((), bearer_metadata("wrong"), (("authorization", "s3cret"),)):
            async with ScriptedDraft(server.address, metadata=metadata) as stranger:
                assert await stranger.code() is grpc.StatusCode.UNAUTHENTICATED
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await stranger.stub.GetTargetInfo(pb.GetTargetInfoRequest(), metadata=metadata)
                assert from_rpc_error(caught.value).reason == "UNAUTHENTICATED"
                call = reflection_pb2_grpc.ServerReflectionStub(
                    stranger.channel
                ).ServerReflectionInfo(
                    iter([reflection_pb2.ServerReflectionRequest(list_services="")])
                )
                assert await call.code() is grpc.StatusCode.UNAUTHENTICATED
                assert await status(stranger.channel) == Serving.SERVING
        async with ScriptedDraft(server.address, metadata=bearer_metadata("s3cret")) as friend:
            session = await friend.open(1, [1], 5)
            await friend.until_ended(session)


def test_a_token_never_travels_in_the_clear() -> None:
    with pytest.raises(ValueError, match="--tls-cert"):
        Security(token="s3cret").check("0.0.0.0:1")
    for address in ("127.0.0.1:1", "dns:localhost:1", "ipv4:127.0.0.1:1"):
        Security(token="s3cret").check(address)
    Security(token="s3cret").check("unix:/tmp/socket")
    Security(token="s3cret", certificate=b"c", key=b"k").check("0.0.0.0:1")


def test_an_open_port_is_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        Security().check("[::]:50052")
    assert "open to the network" in caplog.text


def make_certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate for this machine, signed by itself, and its key."""
    certificate, key = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
         "-nodes", "-days", "1", "-subj", "/CN=localhost", "-addext",
         "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", key, "-out", certificate],
        check=True,
        capture_output=True,
    )  # fmt: skip
    return certificate, key


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")
async def test_tls_with_client_certificates(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    pem, key_pem = certificate.read_bytes(), key.read_bytes()
    async with scripted_server(
        ScriptedTarget(NEXT),
        tls_cert=str(certificate),
        tls_key=str(key),
        tls_ca=str(certificate),
    ) as server:
        known = open_channel(
            server.address, max_message_bytes=1 << 20, ca=pem, certificate=pem, key=key_pem
        )
        async with ScriptedDraft(server.address, channel=known) as draft:
            session = await draft.open(1, [1], 5)
            await draft.until_ended(session)
        for stranger in (
            open_channel(server.address, max_message_bytes=1 << 20, ca=pem),
            open_channel(server.address, max_message_bytes=1 << 20),
        ):
            async with stranger:
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await status(stranger)
                assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_draining_lets_sessions_finish_and_refuses_new_ones() -> None:
    target = ScriptedTarget(NEXT)
    async with scripted_server(target, stop=False) as server, ScriptedDraft(
        server.address
    ) as draft:  # fmt: skip
        session = await draft.open(1, [1], 10, drafting=True, patience_us=10**8)
        await draft.until(lambda: bool(session.opened))
        watch = health_pb2_grpc.HealthStub(draft.channel).Watch(health_pb2.HealthCheckRequest())
        assert (await watch.read()).status == Serving.SERVING
        stopping = asyncio.create_task(server.stop(60))
        await draft.until(lambda: bool(draft.drains))
        assert draft.drains[0].deadline_ms == 60_000
        assert (await watch.read()).status == Serving.NOT_SERVING
        watch.cancel()
        late = await draft.open(2, [2], 10)
        await draft.until_ended(late)
        assert (late.errors[0].code, late.errors[0].reason) == ("UNAVAILABLE", "DRAINING")
        while not session.ended:  # trees of the open session are still taken
            answered = session.round
            if session.nodes:  # the last token is decoded without one
                await draft.send_tree(session, Tree.root_only(session.tokens[-1]))
            await draft.until(lambda: session.ended or session.round > answered)  # noqa: B023
        assert session.tokens == decode_plainly(NEXT, [1], 10)
        await stopping
        assert await draft.code() is grpc.StatusCode.OK
    assert target.pages_free == target.info.pages_total


async def test_the_grace_period_ends() -> None:
    target = ScriptedTarget(NEXT)
    async with scripted_server(target, stop=False) as server, ScriptedDraft(
        server.address
    ) as draft:  # fmt: skip
        session = await draft.open(1, [1], 10, drafting=True, patience_us=10**8)
        await draft.until(lambda: bool(session.opened))
        await server.stop(0.05)
        assert session.ended
        assert session.errors[0].reason == "DRAINING"
        assert await draft.code() is grpc.StatusCode.OK
    assert target.pages_free == target.info.pages_total

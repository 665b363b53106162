"""Both servers as they are run, with a collector that is there, and one that is not."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

from forerun.client import AsyncClient
from forerun.obs import span_names as names
from forerun.obs.tracing import open_tracer
from tests.fixtures.drafting import alphabet
from tests.fixtures.scripted_target import decode_plainly
from tests.fixtures.servers import scripted, servers, target_of
from tests.fixtures.tiny import shared_checkpoint
from tests.fixtures.tracing import CALLER, SAMPLED, TRACE_ID

PROMPT = "hello a"
START_S = 60.0


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """Takes what is exported to it: (service, span) of each, and the headers of each call."""

    def __init__(self) -> None:
        self.spans: list[tuple[str, Any]] = []
        self.headers: list[dict[str, str]] = []

    async def Export(
        self, request: trace_service_pb2.ExportTraceServiceRequest, context: Any
    ) -> trace_service_pb2.ExportTraceServiceResponse:
        self.headers.append(dict(context.invocation_metadata()))
        for resource_spans in request.resource_spans:
            attributes = {a.key: a.value.string_value for a in resource_spans.resource.attributes}
            for scope_spans in resource_spans.scope_spans:
                self.spans += [(attributes["service.name"], span) for span in scope_spans.spans]
        return trace_service_pb2.ExportTraceServiceResponse()


@asynccontextmanager
async def collector() -> AsyncIterator[tuple[Collector, str]]:
    """One that listens, and its address."""
    service, server = Collector(), grpc.aio.server()
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(service, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield service, f"http://127.0.0.1:{port}"
    finally:
        await server.stop(0)


@asynccontextmanager
async def process(*arguments: str, **environment: str) -> AsyncIterator[None]:
    """A server, once it listens; at the end SIGTERM ends it in order."""
    command = (sys.executable, "-m", *arguments)
    started = await asyncio.create_subprocess_exec(
        *command, stderr=asyncio.subprocess.PIPE, env=os.environ | environment
    )
    assert started.stderr is not None
    log: list[str] = []
    try:
        while not any(word in "".join(log[-1:]) for word in ("listening on", "serving on")):
            line = await asyncio.wait_for(started.stderr.readline(), START_S)
            assert line, "".join(log)
            log.append(line.decode())
        yield
        started.send_signal(signal.SIGTERM)
        rest = await asyncio.wait_for(started.stderr.read(), START_S)
        assert await started.wait() == 0, "".join(log) + rest.decode()
    finally:
        if started.returncode is None:
            started.kill()
            await started.wait()


async def test_what_the_two_processes_export_is_one_trace() -> None:
    """The last spans are exported on the way out, since a batch takes five seconds to begin."""
    pytest.importorskip("forerun._native")
    with tempfile.TemporaryDirectory(prefix="forerun-") as folder:
        verifier, address = f"unix:{folder}/verify.sock", f"unix:{folder}/draft.sock"
        model = ("--model", str(shared_checkpoint()), "--tracing")
        async with collector() as (received, endpoint):
            variables = {
                "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint,
                "OTEL_EXPORTER_OTLP_HEADERS": "x-key=s3cret",
            }
            verify = ("verify_server", "--listen", verifier, "--threads", "1", *model)
            draft = ("draft_server", "--listen", address, "--verifier", verifier, *model)
            async with (
                process(*verify, "--kv-tokens", "4096", **variables),
                process(*draft, **variables),
                AsyncClient(address, timeout=60) as client,
            ):
                answer = await client.complete(
                    PROMPT, max_tokens=20, ignore_eos=True, traceparent=SAMPLED
                )
    assert {span.trace_id.hex() for _, span in received.spans} == {TRACE_ID}
    assert all(headers["x-key"] == "s3cret" for headers in received.headers)
    steps = answer.stats.rounds + answer.stats.plain_steps
    assert Counter((service, span.name) for service, span in received.spans) == {
        (names.DRAFT_SERVICE, names.REQUEST): 1,
        (names.DRAFT_SERVICE, names.DRAFT_ROUND): steps,
        (names.VERIFY_SERVICE, names.SESSION): 1,
        (names.VERIFY_SERVICE, names.PREFILL): 1,
        (names.VERIFY_SERVICE, names.VERIFY_ROUND): steps,
    }
    by_name = {span.name: span for _, span in received.spans}
    assert by_name[names.REQUEST].parent_span_id.hex() == CALLER
    assert by_name[names.SESSION].parent_span_id == by_name[names.REQUEST].span_id


async def test_a_collector_that_is_away_harms_no_request(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # not listening: connections are refused
        address = f"127.0.0.1:{nobody.getsockname()[1]}"
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://{address}")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
        monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "20")  # which soon is full
        monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "10")
        tracers = open_tracer(True, "forerun-draft"), open_tracer(True, "forerun-verify")
        async with servers(target_of(scripted(alphabet)), tracers=tracers) as running:
            for _ in range(20):
                answer = await running.client.complete(PROMPT, max_tokens=40, traceparent=SAMPLED)
                assert list(answer.token_ids) == decode_plainly(alphabet, list(PROMPT.encode()), 40)
    assert address in caplog.text, "an export was tried"

"""Tracing by itself: off it costs no import, on it is bounded in time and in what it logs."""

from __future__ import annotations

import asyncio
import logging
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from forerun import __version__
from forerun.obs import otel, span_names
from forerun.obs.otel import OtelTracer
from forerun.obs.tracing import Span, Tracer, open_tracer
from tests.fixtures.tracing import SAMPLED, UNSAMPLED, Recorder

OPERATIONS = Path(__file__).parents[2] / "docs" / "operations.md"


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )


def test_servers_that_do_not_trace_import_no_opentelemetry() -> None:
    code = """
import asyncio, sys
import draft_server.__main__, verify_server.__main__
from tests.fixtures.drafting import alphabet
from tests.fixtures.servers import scripted, servers, target_of

async def main():
    async with servers(target_of(scripted(alphabet))) as running:
        await running.client.complete("hello", max_tokens=9, traceparent="%s")

asyncio.run(main())
print([name for name in sys.modules if name.partition(".")[0] == "opentelemetry"])
"""
    result = run_python(code % SAMPLED)
    assert result.stdout.strip() == "[]", result.stderr


@pytest.mark.parametrize("server", ["draft_server", "verify_server"])
def test_the_flag_without_the_extra_is_one_line_of_error(server: str) -> None:
    code = f"""
import sys
sys.modules["opentelemetry"] = None
from {server}.__main__ import main
sys.exit(main(["--tracing", "--listen", "127.0.0.1:0"]))
"""
    result = run_python(code)
    assert result.returncode == 1
    error = next(line for line in result.stderr.splitlines() if "error:" in line)
    assert "--tracing needs OpenTelemetry" in error and "'.[tracing]'" in error
    assert "Traceback" not in result.stderr


def test_a_tracer_that_is_off_hands_on_what_came() -> None:
    tracer = open_tracer(False, "forerun-draft")
    assert type(tracer) is Tracer
    span = tracer.start("forerun.request", SAMPLED, 0)
    assert type(span) is Span and not span.recording and span.traceparent == SAMPLED
    assert tracer.start("forerun.request", "no context", 0).traceparent == ""


async def test_a_span_that_is_not_sampled_is_the_one_that_records_nothing() -> None:
    recorder = Recorder()
    span = recorder.tracer.start("forerun.request", UNSAMPLED, 0)
    assert type(span) is Span and span.traceparent.endswith("-00")
    await recorder.tracer.close()


async def test_the_sdk_that_is_disabled_hands_on_what_came(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    recorder = Recorder()
    assert recorder.tracer.start("forerun.request", SAMPLED, 0).traceparent == SAMPLED
    assert recorder.tracer.start("forerun.request", "", 0).traceparent == ""
    await recorder.tracer.close()
    assert recorder.spans == ()


async def test_the_resource_is_the_server_unless_the_environment_names_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "service.namespace=shop,service.name=mine")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "")
    for expected in ("mine", "theirs"):
        recorder = Recorder("forerun-draft")
        recorder.tracer.start("forerun.request", SAMPLED, 0).end()
        await recorder.tracer.close()
        [span] = recorder.spans
        assert span.resource.attributes["service.name"] == expected
        assert span.resource.attributes["service.namespace"] == "shop"
        assert span.resource.attributes["service.version"] == __version__
        monkeypatch.setenv("OTEL_SERVICE_NAME", "theirs")


@pytest.mark.parametrize("name", otel.PROTOCOLS)
def test_another_protocol_is_refused_by_name(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "http/protobuf")
    with pytest.raises(ValueError, match=f"{name} is 'http/protobuf'; .* 4317"):
        open_tracer(True, "forerun-draft")


class Stuck(SpanExporter):
    """Like one whose collector does not answer: it waits until it is shut down."""

    def __init__(self) -> None:
        self.entered, self.closed = threading.Event(), threading.Event()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.entered.set()
        self.closed.wait(20)
        return SpanExportResult.FAILURE

    def shutdown(self) -> None:
        self.closed.set()


async def test_closing_waits_no_longer_than_it_is_told(caplog: pytest.LogCaptureFixture) -> None:
    exporter = Stuck()
    tracer = OtelTracer("test", exporter)
    tracer.start("forerun.request", SAMPLED, 0).end()
    await asyncio.wait_for(tracer.close(0.05), 10)
    assert exporter.entered.is_set() and exporter.closed.is_set()
    assert "not exported within 0.05 s" in caplog.text


@pytest.fixture
def own_handlers() -> Iterator[logging.Logger]:
    """Of the logger of OpenTelemetry: none at first."""
    parent = logging.getLogger("opentelemetry")
    kept = parent.handlers[:], parent.propagate
    parent.handlers[:], parent.propagate = [], True
    yield parent
    parent.handlers[:], parent.propagate = kept


async def test_a_collector_that_is_away_fills_no_log(
    own_handlers: logging.Logger, caplog: pytest.LogCaptureFixture
) -> None:
    tracers = [Recorder().tracer for _ in range(2)]
    exporter = logging.getLogger("opentelemetry.exporter.otlp.proto.grpc.exporter")
    for number in range(100):
        exporter.warning(f"cannot export, attempt {number}")  # its own filter drops repetitions
    assert [record.message for record in caplog.records] == ["cannot export, attempt 0"]
    assert caplog.records[0].name == "forerun.obs.otel"
    assert len(own_handlers.handlers) == 1
    for tracer in tracers:
        await tracer.close()


def test_the_page_on_operations_explains_every_name() -> None:
    page = OPERATIONS.read_text(encoding="utf-8")
    told = set(re.findall(r"`((?:forerun|error)[.-][a-z_.-]+)`", page))
    assert {value for name, value in vars(span_names).items() if name.isupper()} <= told

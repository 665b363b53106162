"""Traces by OpenTelemetry: the one file that imports it, itself imported where tracing is on alone.

Spans are exported by OTLP over gRPC, in batches, by a thread of the SDK's own. The SDK reads the
sampler, the collector's address and all else from the standard OTEL_ variables.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace import Span as ApiSpan
from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context
from opentelemetry.trace import Tracer as ApiTracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from forerun import __version__
from forerun.obs.span_names import ERROR_TYPE
from forerun.obs.tracing import CLOSE_S, Attributes, Span, Tracer
from forerun.trace import valid_traceparent

logger = logging.getLogger(__name__)

PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
# A collector that is away fails every export, and each has much to say about it.
LOG_EVERY_S = 60.0

_PROPAGATOR = TraceContextTextMapPropagator()


class OtelSpan(Span):
    """A span that is recorded, and its children."""

    __slots__ = ("_clock_ns", "_context", "_span", "_tracer")
    recording = True

    def __init__(
        self, tracer: ApiTracer, span: ApiSpan, context: Context, traceparent: str, clock_ns: int
    ) -> None:
        """clock_ns: the time of day less that of time.monotonic_ns(), one for all that is below, so
        that its durations are those that were measured."""
        super().__init__(traceparent)
        self._tracer = tracer
        self._span = span
        self._context = context
        self._clock_ns = clock_ns

    def set(self, attributes: Attributes) -> None:
        self._span.set_attributes(attributes)

    def child(self, name: str, began_ns: int, ended_ns: int, attributes: Attributes) -> None:
        start = began_ns + self._clock_ns
        span = self._tracer.start_span(name, self._context, attributes=attributes, start_time=start)
        span.end(ended_ns + self._clock_ns)

    def end(self, error: str = "") -> None:
        if error:
            self._span.set_attribute(ERROR_TYPE, error)
            self._span.set_status(Status(StatusCode.ERROR, error))
        self._span.end(time.monotonic_ns() + self._clock_ns)


class OtelTracer(Tracer):
    """Traces one server. service: its `service.name`, unless OTEL_SERVICE_NAME names another.
    exporter: where ended spans go; called by a thread of its own."""

    def __init__(self, service: str, exporter: SpanExporter) -> None:
        own = Resource.create({"service.name": service, "service.version": __version__})
        resource = own.merge(OTELResourceDetector().detect())
        self._exporter = exporter
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("forerun", __version__)
        _say_rarely()

    def start(self, name: str, traceparent: str, began_ns: int) -> Span:
        traceparent = valid_traceparent(traceparent)
        clock_ns = time.time_ns() - time.monotonic_ns()
        parent = _PROPAGATOR.extract({"traceparent": traceparent}, Context())
        start = began_ns + clock_ns
        span = self._tracer.start_span(name, parent, SpanKind.SERVER, start_time=start)
        context = set_span_in_context(span, Context())
        carrier = {"traceparent": traceparent}
        _PROPAGATOR.inject(carrier, context)
        if not span.is_recording():  # the decision goes on all the same
            return Span(carrier["traceparent"])
        return OtelSpan(self._tracer, span, context, carrier["traceparent"], clock_ns)

    async def close(self, within_s: float = CLOSE_S) -> None:
        closing = threading.Thread(target=self._provider.shutdown, name="tracing", daemon=True)
        closing.start()
        await asyncio.to_thread(closing.join, within_s)
        if closing.is_alive():
            logger.warning("the last spans were not exported within %g s", within_s)
            self._exporter.shutdown()  # which ends its waiting for a collector


def otlp_exporter() -> SpanExporter:
    """To the collector that OTEL_EXPORTER_OTLP_ENDPOINT names, http://localhost:4317 by default.

    Raises ValueError where a variable asks for another protocol, or cannot be read.
    """
    for name in PROTOCOLS:
        protocol = os.environ.get(name, "grpc")
        if protocol != "grpc":
            raise ValueError(
                f"{name} is {protocol!r}; spans are exported by grpc alone: unset it, and name a"
                " collector's port for that, 4317 by default"
            )
    return OTLPSpanExporter()


class _Rarely(logging.Handler):
    """Hands on to this file's logger what OpenTelemetry logs, one line in LOG_EVERY_S seconds."""

    def __init__(self) -> None:
        super().__init__()
        self._silent_until = -LOG_EVERY_S

    def emit(self, record: logging.LogRecord) -> None:
        now = time.monotonic()
        if now >= self._silent_until:
            self._silent_until = now + LOG_EVERY_S
            logger.log(record.levelno, "%s", record.getMessage())


def _say_rarely() -> None:
    parent = logging.getLogger("opentelemetry")
    if not any(isinstance(handler, _Rarely) for handler in parent.handlers):
        parent.addHandler(_Rarely())
        parent.propagate = False

"""What a server records of single requests, as it sees it: spans, and where they come from.

Here nothing is recorded, which is what a server has unless tracing is switched on. Imports no
OpenTelemetry: `forerun.obs.otel` does, and is imported where tracing is on alone.
"""

from __future__ import annotations

from collections.abc import Mapping

from forerun.trace import valid_traceparent

Attributes = Mapping[str, str | int | bool]

# What is left to export at the end gets this long.
CLOSE_S = 2.0


class Span:
    """One request or session; this one records nothing.

    recording: whether anything is kept; where it is not, callers leave out what lies below.
    traceparent: what goes on to whoever serves a part of it, empty without a trace. Times are
    nanoseconds of time.monotonic_ns().
    """

    __slots__ = ("traceparent",)
    recording = False

    def __init__(self, traceparent: str = "") -> None:
        self.traceparent = traceparent

    def set(self, attributes: Attributes) -> None:
        """Adds attributes, whose names are those of `forerun.obs.span_names`."""

    def child(self, name: str, began_ns: int, ended_ns: int, attributes: Attributes) -> None:
        """Records a part that is over."""

    def end(self, error: str = "") -> None:
        """Ends it, once. error: the reason, where it failed."""


class Tracer:
    """Starts spans; this one's record nothing."""

    def start(self, name: str, traceparent: str, began_ns: int) -> Span:
        """The span of a request or session that began at `began_ns`. traceparent: as it came with
        it; one that is malformed is dropped."""
        return Span(valid_traceparent(traceparent))

    async def close(self, within_s: float = CLOSE_S) -> None:
        """Exports what is left, as far as that is done within `within_s` seconds."""


def open_tracer(tracing: bool, service: str) -> Tracer:
    """What a server traces by. tracing: whether it is on.

    Raises ValueError where OpenTelemetry is not installed, or is told to export in another way.
    """
    if not tracing:
        return Tracer()
    try:
        from forerun.obs.otel import OtelTracer, otlp_exporter
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "opentelemetry":
            raise
        raise ValueError(
            "--tracing needs OpenTelemetry, which is not installed; the extra brings it:"
            " pip install '.[tracing]' where forerun's sources are"
        ) from error
    return OtelTracer(service, otlp_exporter())

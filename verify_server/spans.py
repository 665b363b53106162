"""What a trace shows of the verify server: a span for a session, below it its prompt and rounds.

Made on the event loop from what goes in and comes out, so that the scheduler knows nothing of it.
There is none for a stream, which lives for days.
"""

from __future__ import annotations

from collections.abc import Iterable

from forerun.obs import span_names as names
from forerun.obs.tracing import Span, Tracer
from forerun.v1 import verify_pb2 as pb
from verify_server.events import Opened, StreamOutput, Timing, Verdict


class SessionSpans:
    """The spans of all sessions that are open and sampled."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._spans: dict[int, dict[int, Span]] = {}  # by stream and session

    def open(self, stream: int, opens: Iterable[pb.Open], received_ns: int) -> None:
        """Sessions that are asked for; whether they are let in, `record` is told."""
        for message in opens:
            if message.session in self._spans.get(stream, ()):
                continue  # it will be refused, and the other one goes on
            span = self._tracer.start(names.SESSION, message.traceparent, received_ns)
            if span.recording:
                tokens = len(message.prompt_token_ids)
                span.set({names.PROMPT_TOKENS: tokens, names.MAX_TOKENS: message.max_tokens})
                self._spans.setdefault(stream, {})[message.session] = span

    def record(self, stream: int, output: StreamOutput) -> None:
        """What one step had for a stream."""
        spans = self._spans.get(stream)
        if not spans:
            return
        for opened in output.opened:
            if opened.session in spans:
                _prefill(spans[opened.session], opened)
        for verdict in output.verdicts:
            if verdict.session in spans:
                _round(spans[verdict.session], verdict)
        for finished in output.finished:
            if finished.session in spans:
                span = spans.pop(finished.session)
                span.set(names.counts(finished.stats))
                span.set({names.FINISH_REASON: finished.reason.value})
                # A cancel is no failure here: the draft server ends a session so at a stop string.
                span.end()
        for failure in output.failures:
            if failure.ended and failure.session in spans:
                spans.pop(failure.session).end(failure.error.reason)

    def close(self, stream: int) -> None:
        """The stream ended, and with it its sessions."""
        for span in self._spans.pop(stream, {}).values():
            span.end("STREAM_ENDED")


def _prefill(span: Span, opened: Opened) -> None:
    timing = opened.timing
    span.child(names.PREFILL, _began_ns(timing), _ended_ns(timing), {})


def _round(span: Span, verdict: Verdict) -> None:
    timing, bonus = verdict.timing, verdict.bonus_token_id is not None
    span.child(
        names.VERIFY_ROUND,
        _began_ns(timing),
        _ended_ns(timing),
        {
            names.ROUND: verdict.round,
            names.PLAIN: verdict.verified_nodes == 0,
            names.DRAFTED: verdict.verified_nodes,
            names.ACCEPTED: len(verdict.accepted_nodes),
            names.EMITTED: len(verdict.token_ids) + bonus,
            names.QUEUE_NS: timing.queue_ns,
            names.VERIFY_NS: timing.verify_ns,
        },
    )


def _began_ns(timing: Timing) -> int:
    return timing.began_ns - timing.queue_ns


def _ended_ns(timing: Timing) -> int:
    return timing.began_ns + timing.verify_ns

"""What a trace shows of the draft server: a span for a request, and one below it for each round.

Knows no session: it is told what happened.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from forerun.errors import ForerunError
from forerun.obs import span_names as names
from forerun.obs.tracing import Span
from forerun.stats import SessionStats
from forerun.v1 import tree_pb2


@contextmanager
def ending(span: Span) -> Iterator[None]:
    """Ends a request's span with what happens inside the `with` block. Only the reason of an error
    is kept: its message may quote what the client sent."""
    try:
        yield
    except ForerunError as error:
        span.end(error.reason)
        raise
    except asyncio.CancelledError:
        span.end("CANCELLED")
        raise
    except BaseException:
        span.end("INTERNAL")
        raise
    span.end()


def record_round(
    span: Span,
    number: int,
    counts: SessionStats,
    granted: tree_pb2.Budget,
    fallback: str,
    times: tuple[float, float, float],
) -> None:
    """A round. counts: of it alone. fallback: why nothing was proposed, empty where something was,
    or nothing was asked for. times: on the clock of time.monotonic(), of the verdict before, of the
    last tree that was sent (before that verdict, where this round has none), of its own verdict."""
    began, sent, ended = times
    sent = max(sent, began)
    attributes: dict[str, str | int | bool] = {
        names.ROUND: number,
        names.BUDGET_NODES: granted.nodes,
        names.BUDGET_DEPTH: granted.depth,
        names.PLAIN: counts.plain_steps > 0,
        names.DRAFTED: counts.drafted,
        names.ACCEPTED: counts.accepted,
        names.EMITTED: counts.emitted,
        names.DRAFT_NS: _ns(sent - began),
        names.WAIT_NS: _ns(ended - sent),
    }
    if fallback:
        attributes[names.FALLBACK] = fallback
    span.child(names.DRAFT_ROUND, _ns(began), _ns(ended), attributes)


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)

"""Counters and gauges of the verify server, in a Prometheus registry of their own.

Counters alone, so that every rate is a quotient of two of them: acceptance rate is
accepted / drafted_nodes, mean accepted length accepted / rounds, and at depth d
accepted_by_depth{d} / drafted_by_depth{d}. The bonus token is in emitted and bonus alone. Nothing
is labelled by session.
"""

from __future__ import annotations

from collections.abc import Sequence

from prometheus_client import Counter, Gauge, Histogram

from forerun.obs.process_info import server_registry
from forerun.stats import SessionStats
from verify_server.sessions import Dropped, Phase
from verify_server.stops import FinishReason

STEP_BUCKETS = (
    0.0005, 0.001, 0.002, 0.003, 0.005, 0.007, 0.01, 0.015, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5, 1, 2
)  # fmt: skip
ROW_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


class Metrics:
    """What is counted; `registry` is what an HTTP endpoint serves."""

    def __init__(self) -> None:
        self.registry = server_registry()
        self._rounds = self._counter("rounds", "Rounds with at least one proposed node.")
        self._drafted = self._counter("drafted_nodes", "Nodes verified, roots not counted.")
        self._accepted = self._counter("accepted", "Accepted nodes, cut where a session ended.")
        self._bonus = self._counter("bonus", "Tokens of the target behind a tree's accepted ones.")
        self._accepted_by_depth = self._counter(
            "accepted_by_depth", "Rounds that accepted a node of this depth.", "depth"
        )
        self._drafted_by_depth = self._counter(
            "drafted_by_depth", "Rounds that proposed a node of this depth.", "depth"
        )
        self._emitted = self._counter(
            "emitted",
            "Tokens emitted, first and bonus tokens too. Those behind a client's stop string or"
            " cancel, emitted before the cancel arrived, are in no count of the draft server.",
        )
        self._plain_steps = self._counter("plain_steps", "Steps of plain decoding.")
        self._stale = self._counter("stale_trees", "Trees dropped, never applied.", "reason")
        self._preemptions = self._counter("preemptions", "Sessions that had to give pages back.")
        self._prefix_hits = self._counter("prefix_hits", "Look-ups that found KV of a prompt.")
        self._prefix_hit_tokens = self._counter(
            "prefix_hit_tokens", "Prompt tokens whose KV was found, not computed."
        )
        self._prefix_evictions = self._counter(
            "prefix_evictions", "Cached pages given up, for room or for the limit."
        )
        self._evicted = 0
        self._finished = self._counter("finished", "Sessions that finished.", "reason")
        self._errors = self._counter("errors", "Sessions that ended by an error.", "reason")
        self._rows = self._counter("rows", "Rows computed.", "kind")
        self._sessions = self._gauge("sessions", "Open sessions.", "phase")
        self._pages = self._gauge("pages", "Pages of the KV pool.", "state")
        self._granted = self._counter("granted_nodes", "Nodes that rounds were granted.")
        self._grants = self._counter("grants", "Rounds of drafting sessions that began.")
        self.streams = self._gauge("streams", "Open streams of draft servers.")
        self._queue_seconds = self._histogram(
            "queue_seconds",
            "From when a session's rows were ready to the step that took them.",
            STEP_BUCKETS,
        )
        self._rows_per_step = self._histogram(
            "rows_per_step", "Rows of one step, of all sessions.", ROW_BUCKETS
        )
        self._step_seconds = self._histogram("step_seconds", "Duration of one step.", STEP_BUCKETS)
        # A rate of what never happened is 0, not missing.
        for reason in Dropped:
            self._stale.labels(reason.value)
        for end in FinishReason:
            self._finished.labels(end.value)
        for kind in ("decode", "prefill"):
            self._rows.labels(kind)

    def record_counts(self, counts: SessionStats) -> None:
        """Adds what the sessions of one step got together."""
        self._rounds.inc(counts.rounds)
        self._plain_steps.inc(counts.plain_steps)
        self._drafted.inc(counts.drafted)
        self._accepted.inc(counts.accepted)
        self._emitted.inc(counts.emitted)
        for depth, rounds in enumerate(counts.drafted_by_depth, start=1):
            self._drafted_by_depth.labels(depth).inc(rounds)
        for depth, rounds in enumerate(counts.accepted_by_depth, start=1):
            self._accepted_by_depth.labels(depth).inc(rounds)

    def record_bonus(self, tokens: int) -> None:
        self._bonus.inc(tokens)

    def record_dropped(self, reason: Dropped) -> None:
        self._stale.labels(reason.value).inc()

    def record_preemption(self) -> None:
        self._preemptions.inc()

    def record_finished(self, reason: str) -> None:
        self._finished.labels(reason).inc()

    def record_error(self, reason: str) -> None:
        self._errors.labels(reason).inc()

    def record_step(self, seconds: float, *, decode_rows: int, prefill_rows: int) -> None:
        self._step_seconds.observe(seconds)
        self._rows.labels("decode").inc(decode_rows)
        self._rows.labels("prefill").inc(prefill_rows)
        self._rows_per_step.observe(decode_rows + prefill_rows)

    def record_queue(self, seconds: float) -> None:
        self._queue_seconds.observe(seconds)

    def record_grant(self, nodes: int) -> None:
        self._grants.inc()
        self._granted.inc(nodes)

    def record_prefix_hit(self, tokens: int) -> None:
        self._prefix_hits.inc()
        self._prefix_hit_tokens.inc(tokens)

    def set_load(self, sessions: dict[Phase, int]) -> None:
        for phase in Phase:
            self._sessions.labels(phase.value).set(sessions.get(phase, 0))

    def set_pages(self, *, total: int, free: int, cached: int, evicted: int) -> None:
        """evicted: how many there were since the start; pages in all."""
        self._pages.labels("free").set(free)
        self._pages.labels("cached").set(cached)
        self._pages.labels("held").set(total - free - cached)
        self._prefix_evictions.inc(evicted - self._evicted)
        self._evicted = evicted

    def value(self, name: str, **labels: str) -> float:
        """The value of `forerun_verify_<name>`, 0 where it was never counted."""
        return self.registry.get_sample_value(f"forerun_verify_{name}", labels) or 0.0

    def _counter(self, name: str, help: str, *labels: str) -> Counter:
        return Counter(f"forerun_verify_{name}", help, labels, registry=self.registry)

    def _histogram(self, name: str, help: str, buckets: Sequence[float]) -> Histogram:
        return Histogram(f"forerun_verify_{name}", help, registry=self.registry, buckets=buckets)

    def _gauge(self, name: str, help: str, *labels: str) -> Gauge:
        return Gauge(f"forerun_verify_{name}", help, labels, registry=self.registry)

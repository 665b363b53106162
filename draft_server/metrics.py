"""Metrics of the draft server: counters that rates can be read from, never averages.

Owns the names (forerun_draft_*) and the registry, one a server. Nothing is labelled by session.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from draft_server.drafters.calibration import Calibration
from forerun.obs.process_info import server_registry
from forerun.stats import SessionStats

# A round takes from half a millisecond to two seconds; a first token waits for a prefill.
ROUND_BUCKETS = (
    *(0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03),
    *(0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 2.0),
)
FALLBACKS = (
    *("no_proposal", "draft_late", "catch_up", "draft_context", "draft_kv_full"),
    *("drafter_error", "last_token", "tree_refused"),
)
STALE_KINDS = ("opened", "verdict", "hidden_states", "finished", "error", "draft")
PARTS = ("draft", "queue", "verify", "other")
ENDS = ("stop", "length", "cancelled", "error")
# Those that are no client's doing; others are there once they have happened.
FAILURES = ("INTERNAL", "SESSION_LOST", "VERIFIER_UNREACHABLE")
LENGTH_BUCKETS = (0, 1, 2, 3, 4, 5, 6, 8, 12, 16)
FIRST_TOKEN_BUCKETS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)


class DraftMetrics:
    """What a draft server counts. Mean accepted length is accepted / rounds, the acceptance rate
    accepted / drafted_nodes: the bonus token is in neither."""

    def __init__(self) -> None:
        self.registry = server_registry()
        self.rounds = self._counter("rounds", "Rounds with at least one proposed node.")
        self.plain_steps = self._counter("plain_steps", "Steps of plain decoding.")
        self.drafted_nodes = self._counter("drafted_nodes", "Proposed nodes, roots not counted.")
        self.accepted = self._counter("accepted", "Accepted nodes, bonus tokens not counted.")
        self.bonus = self._counter("bonus", "Tokens of the target behind a tree's accepted ones.")
        self.drafted_by_depth = self._counter(
            "drafted_by_depth", "Rounds that proposed a node of this depth.", "depth"
        )
        self.accepted_by_depth = self._counter(
            "accepted_by_depth", "Rounds in which a node of this depth was accepted.", "depth"
        )
        self.emitted = self._counter("emitted", "Tokens handed to clients.")
        self.fallback = self._counter("fallback", "Rounds without a proposal.", "reason")
        self.stale = self._counter("stale", "Replies dropped since they were out of date.", "kind")
        self.finished = self._counter("finished", "Generations that ended.", "reason")
        self.errors = self._counter(
            "errors", "Requests that ended by an error, or were refused.", "reason"
        )
        self.reopened = self._counter("reopened", "Sessions opened again after a lost stream.")
        self.sessions = self._gauge("sessions", "Open generations.")
        self.trees_in_flight = self._gauge(
            "trees_in_flight", "Trees with a proposed node that were sent and have no verdict yet."
        )
        self.verifier_up = self._gauge(
            "verifier_up", "1 while connected to a verify server that was checked."
        )
        self.first_token_seconds = self._histogram(
            "first_token_seconds",
            "From receipt of a request to its first token.",
            FIRST_TOKEN_BUCKETS,
        )
        self.round_seconds = self._histogram(
            "round_seconds", "From one verdict of a session to the next.", ROUND_BUCKETS
        )
        self.round_parts = self._counter(
            "round_part_seconds",
            "Where the time of rounds went: the draft, the wait for a step, the step, the rest.",
            "part",
        )
        self.inter_token_seconds = self._histogram(
            "inter_token_seconds",
            "Since the tokens before, shared out among those that came together.",
            ROUND_BUCKETS,
        )
        self.accepted_length = self._histogram(
            "accepted_length",
            "Accepted nodes of a round that proposed some, the bonus token not counted.",
            LENGTH_BUCKETS,
        )
        # A rate of what never happened is 0, not missing.
        for counter, values in (
            (self.fallback, FALLBACKS),
            (self.stale, STALE_KINDS),
            (self.finished, ENDS),
            (self.errors, FAILURES),
            (self.round_parts, PARTS),
        ):
            for value in values:
                counter.labels(value)

    def record(self, stats: SessionStats) -> None:
        """Adds one round of a session."""
        self.rounds.inc(stats.rounds)
        if stats.rounds:
            self.accepted_length.observe(stats.accepted)
            self.bonus.inc(stats.emitted - stats.accepted)
        self.plain_steps.inc(stats.plain_steps)
        self.drafted_nodes.inc(stats.drafted)
        self.accepted.inc(stats.accepted)
        for depth, count in enumerate(stats.drafted_by_depth, start=1):
            self.drafted_by_depth.labels(depth).inc(count)
        for depth, count in enumerate(stats.accepted_by_depth, start=1):
            self.accepted_by_depth.labels(depth).inc(count)

    def record_parts(
        self, *, total_s: float, draft_s: float, queue_s: float, verify_s: float
    ) -> None:
        """Adds the time of one round; what no part accounts for goes to `other`: the wire, and
        waiting for an event loop. Together they are the round: of what began before the last
        verdict was handled here, only the rest counts."""
        self.round_seconds.observe(total_s)
        left_s = total_s
        for part, seconds in (("verify", verify_s), ("queue", queue_s), ("draft", draft_s)):
            counted_s = min(seconds, left_s)
            self.round_parts.labels(part).inc(counted_s)
            left_s -= counted_s
        self.round_parts.labels("other").inc(left_s)

    def watch(self, calibrations: Mapping[str, Calibration]) -> None:
        """Tells how sure methods are of their nodes, and how often they are right."""
        self.registry.register(_Calibrations(calibrations))

    def _counter(self, name: str, description: str, *labels: str) -> Counter:
        return Counter(f"forerun_draft_{name}", description, labels, registry=self.registry)

    def _gauge(self, name: str, description: str) -> Gauge:
        return Gauge(f"forerun_draft_{name}", description, registry=self.registry)

    def _histogram(self, name: str, description: str, buckets: Sequence[float]) -> Histogram:
        full = f"forerun_draft_{name}"
        return Histogram(full, description, buckets=buckets, registry=self.registry)


class _Calibrations(Collector):
    """Read at each scrape: the sums belong to the drafting thread."""

    def __init__(self, calibrations: Mapping[str, Calibration]) -> None:
        self._calibrations = calibrations

    def collect(self) -> Iterable[CounterMetricFamily]:
        labels = ("method", "depth")
        judged = CounterMetricFamily(
            "forerun_draft_judged_nodes", "Nodes whose parent came true.", labels=labels
        )
        expected = CounterMetricFamily(
            "forerun_draft_expected_hits",
            "Sum of the confidences of those nodes, before correction.",
            labels=labels,
        )
        hits = CounterMetricFamily(
            "forerun_draft_hits", "Those nodes that came true themselves.", labels=labels
        )
        for method, calibration in self._calibrations.items():
            for depth, outcomes in calibration.by_depth():
                names = (method, str(depth))
                judged.add_metric(names, outcomes.nodes)
                expected.add_metric(names, outcomes.expected)
                hits.add_metric(names, outcomes.hits)
        return (judged, expected, hits)

"""Metrics of the draft server: counters that rates can be read from, never averages.

Owns the names (forerun_draft_*) and the registry, one a server. Nothing is labelled by session.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from draft_server.drafters.calibration import Calibration
from forerun.stats import SessionStats

# A round takes from half a millisecond to two seconds; a first token waits for a prefill.
ROUND_BUCKETS = (
    *(0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03),
    *(0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 2.0),
)
FIRST_TOKEN_BUCKETS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)


class DraftMetrics:
    """What a draft server counts. Mean accepted length is accepted / rounds, the acceptance rate
    accepted / drafted_nodes: the bonus token is in neither."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.rounds = self._counter("rounds", "Rounds with at least one proposed node.")
        self.plain_steps = self._counter("plain_steps", "Steps of plain decoding.")
        self.drafted_nodes = self._counter("drafted_nodes", "Proposed nodes, roots not counted.")
        self.accepted = self._counter("accepted", "Accepted nodes, bonus tokens not counted.")
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
        self.reopened = self._counter("reopened", "Sessions opened again after a lost stream.")
        self.sessions = Gauge("forerun_draft_sessions", "Open generations.", registry=self.registry)
        self.verifier_up = Gauge(
            "forerun_draft_verifier_up",
            "1 while connected to a verify server that was checked.",
            registry=self.registry,
        )
        self.first_token_seconds = Histogram(
            "forerun_draft_first_token_seconds",
            "From receipt of a request to its first token.",
            buckets=FIRST_TOKEN_BUCKETS,
            registry=self.registry,
        )
        self.round_seconds = Histogram(
            "forerun_draft_round_seconds",
            "From one verdict of a session to the next.",
            buckets=ROUND_BUCKETS,
            registry=self.registry,
        )

    def record(self, stats: SessionStats) -> None:
        """Adds the rounds of one session, once it has ended."""
        self.rounds.inc(stats.rounds)
        self.plain_steps.inc(stats.plain_steps)
        self.drafted_nodes.inc(stats.drafted)
        self.accepted.inc(stats.accepted)
        for depth, count in enumerate(stats.drafted_by_depth, start=1):
            self.drafted_by_depth.labels(depth).inc(count)
        for depth, count in enumerate(stats.accepted_by_depth, start=1):
            self.accepted_by_depth.labels(depth).inc(count)

    def watch(self, calibrations: Mapping[str, Calibration]) -> None:
        """Tells how sure methods are of their nodes, and how often they are right."""
        self.registry.register(_Calibrations(calibrations))

    def _counter(self, name: str, description: str, *labels: str) -> Counter:
        return Counter(f"forerun_draft_{name}", description, labels, registry=self.registry)


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

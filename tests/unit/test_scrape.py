"""Readings of metrics, and what they say of the time between them."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

from forerun.obs.scrape import EMPTY, Change, Scrape, scrape


class Served:
    """A registry with one of each kind, over HTTP."""

    def __init__(self) -> None:
        registry = CollectorRegistry()
        self.tokens = Counter("tokens", "Tokens.", registry=registry)
        self.depths = Counter("depths", "Rounds.", ("depth",), registry=registry)
        self.open = Gauge("open", "Open.", registry=registry)
        self.seconds = Histogram("seconds", "Time.", buckets=(0.1, 1.0), registry=registry)
        self._server, self._thread = start_http_server(0, "127.0.0.1", registry)
        self.address = f"127.0.0.1:{self._server.server_port}"

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def read(self) -> Scrape:
        return scrape(self.address, 5.0)


@pytest.fixture
def served() -> Iterator[Served]:
    server = Served()
    yield server
    server.stop()


def test_what_happened_between_two_readings(served: Served) -> None:
    served.tokens.inc(100)
    served.depths.labels("1").inc(7)
    served.seconds.observe(0.05)
    before = served.read()
    served.tokens.inc(30)
    served.depths.labels("1").inc(3)
    served.depths.labels("2").inc(2)
    served.open.set(4)
    for seconds in (0.5, 0.5, 0.5, 7.0):
        served.seconds.observe(seconds)
    change = Change(before, served.read())
    assert change.of("tokens_total") == 30
    assert change.rate("tokens_total") == pytest.approx(30 / change.seconds)
    assert change.of("depths_total") == 5
    assert change.of("depths_total", depth="1") == 3
    assert change.after.by("depths_total", "depth") == {"1": 10, "2": 2}
    assert change.ratio("depths_total", "tokens_total") == pytest.approx(5 / 30)
    assert change.after.value("open") == 4
    assert change.quantile("seconds", 0.5) == 1.0, "not of the one before"
    assert change.quantile("seconds", 0.9) == math.inf


def test_nothing_has_no_ratio_and_no_quantile(served: Served) -> None:
    change = Change(served.read(), served.read())
    assert change.ratio("tokens_total", "depths_total") is None
    assert change.quantile("seconds", 0.9) is None
    assert change.quantile("unknown", 0.9) is None
    assert change.of("unknown") == 0


def test_a_server_that_restarted_counts_from_nothing() -> None:
    before = Scrape(1.0, {("tokens_total", ()): 1000.0})
    assert Change(before, Scrape(2.0, {("tokens_total", ()): 30.0})).rate("tokens_total") == 30
    assert Change(EMPTY, Scrape(2.0, {("tokens_total", ()): 30.0})).of("tokens_total") == 30


def test_nobody_there_is_an_error() -> None:
    with pytest.raises(OSError, match="refused"):
        scrape("127.0.0.1:1", 1.0)

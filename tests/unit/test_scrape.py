"""Readings of metrics, and what they say of the time between them."""

from __future__ import annotations

import math
import socket
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server
from prometheus_client.samples import Sample

from forerun.obs.scrape import Change, Scrape, scrape


class Served:
    """A registry with one of each kind, over HTTP."""

    def __init__(self) -> None:
        registry = CollectorRegistry()
        self.tokens = Counter("forerun_tokens", "Tokens.", registry=registry)
        self.depths = Counter("forerun_depths", "Rounds.", ("depth",), registry=registry)
        self.open = Gauge("forerun_open", "Open.", registry=registry)
        self.seconds = Histogram("forerun_seconds", "Time.", buckets=(0.1, 1.0), registry=registry)
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
    assert change.of("forerun_tokens_total") == 30
    assert change.rate("forerun_tokens_total") == pytest.approx(30 / change.seconds)
    assert change.of("forerun_depths_total") == 5
    assert change.of("forerun_depths_total", depth="1") == 3
    assert change.after.by("forerun_depths_total", "depth") == {"1": 10, "2": 2}
    assert change.ratio("forerun_depths_total", "forerun_tokens_total") == pytest.approx(5 / 30)
    assert change.after.value("forerun_open") == 4
    assert change.quantile("forerun_seconds", 0.5) == 1.0, "not of the one before"
    assert change.quantile("forerun_seconds", 0.9) == math.inf


def test_nothing_has_no_ratio_and_no_quantile(served: Served) -> None:
    change = Change(served.read(), served.read())
    assert change.ratio("forerun_tokens_total", "forerun_depths_total") is None
    assert change.quantile("forerun_seconds", 0.9) is None
    assert change.quantile("unknown", 0.9) is None
    assert change.of("unknown") == 0


def test_a_server_that_restarted_counts_from_nothing() -> None:
    tokens = "forerun_tokens_total"
    before, after = (
        Scrape(at, [Sample(tokens, {}, value)]) for at, value in ((1.0, 1000.0), (2.0, 30.0))
    )
    assert Change(before, after).rate(tokens) == 30


def test_a_proxy_of_the_web_is_not_asked(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.delenv("no_proxy", raising=False)
    # urlopen keeps the proxies of its first call.
    monkeypatch.setattr(urllib.request, "_opener", None)
    served.tokens.inc(3)
    assert served.read().value("forerun_tokens_total") == 3


def test_nobody_there_is_an_error() -> None:
    with pytest.raises(OSError, match="refused"):
        scrape("127.0.0.1:1", 1.0)


@pytest.mark.parametrize("answer", [b"\x00\x00\x12\x04", b"", b"HTTP/1.1 200 OK\r\n\r\nother 1\n"])
def test_what_is_no_metrics_of_forerun_is_an_error(answer: bytes) -> None:
    """The port of gRPC, say, or of another program."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1 << 16)
                connection.sendall(answer)

        with ThreadPoolExecutor(1) as threads:
            threads.submit(serve)
            with pytest.raises((ValueError, OSError)):
                scrape(f"127.0.0.1:{server.getsockname()[1]}", 5.0)


def test_an_answer_that_never_ends_is_given_up() -> None:
    """Each byte comes in time, so the limit of a single read says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection, suppress(OSError):
                connection.recv(1 << 16)
                connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
                while True:
                    connection.sendall(b"#")
                    time.sleep(0.02)

        with ThreadPoolExecutor(1) as threads:
            threads.submit(serve)
            with pytest.raises(OSError, match="too slowly"):
                scrape(f"127.0.0.1:{server.getsockname()[1]}", 0.5)


@pytest.mark.parametrize("address", ["127.0.0.1:abc", "a b:80", ""])
def test_what_is_no_address_is_an_error(address: str) -> None:
    with pytest.raises((ValueError, OSError)):
        scrape(address, 1.0)

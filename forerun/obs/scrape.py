"""Owns reading a server's metrics as they are now, and what happened between two readings."""

from __future__ import annotations

import math
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass, field
from http.client import HTTPException, HTTPResponse

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

# A proxy for the web is no way to the servers of one's own network.
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass(frozen=True, slots=True)
class Scrape:
    """The samples of one server. at: when, in seconds of time.monotonic()."""

    at: float
    samples: Sequence[Sample]

    def value(self, name: str, **labels: str) -> float:
        """The sum of the samples of this name that have these labels; 0 without one."""
        return math.fsum(
            sample.value
            for sample in self.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )

    def by(self, name: str, label: str) -> dict[str, float]:
        """The samples of this name by the values of a label, in the order of the server."""
        found: dict[str, float] = {}
        for sample in self.samples:
            if sample.name == name and label in sample.labels:
                key = sample.labels[label]
                found[key] = found.get(key, 0.0) + sample.value
        return found


@dataclass(frozen=True, slots=True)
class Change:
    """What happened between two readings of one server. A counter that fell began anew."""

    before: Scrape
    after: Scrape
    seconds: float = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "seconds", max(self.after.at - self.before.at, 1e-9))

    def of(self, name: str, **labels: str) -> float:
        """How much a counter rose."""
        after, before = self.after.value(name, **labels), self.before.value(name, **labels)
        return after - before if after >= before else after

    def rate(self, name: str, **labels: str) -> float:
        """The same a second."""
        return self.of(name, **labels) / self.seconds

    def ratio(self, part: str, whole: str) -> float | None:
        """How much one counter rose over how much another did; None where nothing happened."""
        total = self.of(whole)
        return self.of(part) / total if total else None

    def quantile(self, histogram: str, share: float) -> float | None:
        """Below which value this share of the new observations lies: the end of its bucket, inf
        beyond the last; None without one."""
        buckets = sorted(
            (float(le), self.of(f"{histogram}_bucket", le=le))
            for le in self.after.by(f"{histogram}_bucket", "le")
        )
        total = buckets[-1][1] if buckets else 0.0
        if not total:
            return None
        return next(le for le, count in buckets if count >= share * total)


def _read(response: HTTPResponse, deadline: float) -> bytes:
    """The body. The socket's own limit is one for each read: a server that answers byte by byte
    would be read for ever."""
    parts = []
    while part := response.read1():
        if time.monotonic() > deadline:
            raise TimeoutError("it answers too slowly")
        parts.append(part)
    return b"".join(parts)


def scrape(address: str, timeout_s: float) -> Scrape:
    """Reads the metrics at host:port. Raises OSError where nothing answers, ValueError where what
    does serves none of forerun's."""
    try:
        with _DIRECT.open(f"http://{address}/metrics", timeout=timeout_s) as response:
            text = _read(response, time.monotonic() + timeout_s).decode()
    except HTTPException as error:
        raise ValueError(f"no HTTP at {address}; is it the port of --metrics-port?") from error
    families = text_string_to_metric_families(text)
    samples = [sample for family in families for sample in family.samples]
    if not any(sample.name.startswith("forerun_") for sample in samples):
        raise ValueError(f"{address} serves no metrics of forerun")
    return Scrape(time.monotonic(), samples)

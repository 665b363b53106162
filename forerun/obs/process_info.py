"""Owns the registry of a server's metrics, and what it tells of its own process: version, memory,
processor time, open files."""

from __future__ import annotations

import platform

from prometheus_client import (
    CollectorRegistry,
    Gauge,
    ProcessCollector,
    disable_created_metrics,
)

from forerun import __version__


def server_registry() -> CollectorRegistry:
    """A registry with `forerun_build_info` and `process_*`.

    When each counter was made (`*_created`) is told by none of this process's registries: a third
    of what a scrape would cost, and `process_start_time_seconds` says as much.
    """
    disable_created_metrics()  # type: ignore[no-untyped-call]
    registry = CollectorRegistry()
    info = Gauge(
        "forerun_build_info", "Always 1.", ("version", "python_version"), registry=registry
    )
    info.labels(__version__, platform.python_version()).set(1)
    ProcessCollector(registry=registry)
    return registry

"""Owns what a server tells of its own process: version, memory, processor time, open files."""

from __future__ import annotations

import platform

from prometheus_client import CollectorRegistry, Gauge, ProcessCollector

from forerun import __version__


def register_process_info(registry: CollectorRegistry) -> None:
    """Adds `forerun_build_info` and `process_*` to the registry of a server."""
    info = Gauge(
        "forerun_build_info", "Always 1.", ("version", "python_version"), registry=registry
    )
    info.labels(__version__, platform.python_version()).set(1)
    ProcessCollector(registry=registry)

"""Owns the metric `forerun_isa_info`: the level of the kernels that runs, and why others cannot."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Gauge


def register_isa_info(
    registry: CollectorRegistry, selected: str, levels: Iterable[tuple[str, str]]
) -> None:
    """levels: (name, the gate that failed), the gate empty where the level can run."""
    info = Gauge(
        "forerun_isa_info",
        "Levels of the kernels: 1 for the one that runs; gate says why a level cannot run here.",
        ("level", "gate"),
        registry=registry,
    )
    for name, gate in levels:
        info.labels(name, gate).set(name == selected)

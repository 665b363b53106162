"""Owns the choice of an instruction set level and what is reported of it."""

from __future__ import annotations

import os
from typing import TypedDict

from forerun import _native
from forerun.hardware import pinning_order


class Level(TypedDict):
    """One level: whether it can run here, and if not, the gate that failed."""

    name: str
    available: bool
    reason: str


class IsaReport(TypedDict):
    """The level that is chosen (FORERUN_ISA respected), and all levels, best first."""

    selected: str
    levels: list[Level]


def isa_report(cpu: _native.CpuFeatures | None = None, forced: str | None = None) -> IsaReport:
    """What this process can run. `cpu` replaces what the processor says, for tests.

    Raises ValueError if `forced`, or else FORERUN_ISA, names a level that cannot run.
    """
    cpu = cpu or _native.detect_cpu()
    forced = forced if forced is not None else os.environ.get("FORERUN_ISA", "")
    levels: list[Level] = [
        {"name": name, "available": available, "reason": reason}
        for name, available, reason in _native.isa_levels(cpu)
    ]
    return {"selected": _native.select_isa(cpu, forced), "levels": levels}


def read_bandwidth(threads: int, gigabytes: float = 0.25, repeats: int = 8) -> float:
    """GB/s that `threads` pinned threads read together: the best of `repeats` passes."""
    return _native.read_bandwidth(threads, pinned_cpus(threads), int(gigabytes * 1e9), repeats)


def pinned_cpus(threads: int) -> list[int]:
    """One processor a thread, a core each first.

    Raises ValueError where the process may use fewer: threads that wait for each other at every
    layer would then wait for their turn on a processor.
    """
    cpus = pinning_order()
    if threads > len(cpus):
        raise ValueError(
            f"threads is {threads}, but this process may use {len(cpus)} CPUs; ask for at most that"
        )
    return list(cpus[:threads])

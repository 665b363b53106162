"""The native engine from Python: batches of rows in, the target's own next tokens out."""

from __future__ import annotations

from forerun.engine import processor  # isort: skip  # noqa: F401  before anything imports NumPy
from forerun.engine.config import DTYPES, Dtype, EngineConfig
from forerun.engine.engine import Engine
from forerun.engine.interface import EngineInfo, Rows, RowsOut, Sequence, TargetEngine
from forerun.engine.isa import IsaReport, Level, isa_report, read_bandwidth

__all__ = [
    "DTYPES",
    "Dtype",
    "Engine",
    "EngineConfig",
    "EngineInfo",
    "IsaReport",
    "Level",
    "Rows",
    "RowsOut",
    "Sequence",
    "TargetEngine",
    "isa_report",
    "read_bandwidth",
]

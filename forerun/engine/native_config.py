"""Owns how an engine's configuration is told to the native module: the defaults of this machine
take the place of what was left open."""

from __future__ import annotations

from typing import TypedDict

from forerun.engine.config import EngineConfig
from forerun.engine.isa import isa_report, pinned_cpus
from forerun.hardware import default_threads


class NativeConfig(TypedDict):
    """What the native engine and the native head have in common. bf16: precision of activations and
    KV, float32 if not; pages: of page_size tokens; cpus: a processor for each thread, or none."""

    bf16: bool
    page_size: int
    pages: int
    max_rows: int
    threads: int
    cpus: list[int]
    isa: str


def native_config(config: EngineConfig) -> NativeConfig:
    """Raises ValueError for a level that cannot run, naming it."""
    threads = config.threads or default_threads().count
    return NativeConfig(
        bf16=config.dtype == "bfloat16",
        page_size=config.page_size,
        pages=config.kv_tokens // config.page_size,
        max_rows=config.max_rows,
        threads=threads,
        cpus=pinned_cpus(threads) if config.pin else [],
        isa=isa_report(forced=config.isa)["selected"],
    )

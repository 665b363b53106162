"""Owns the error that says which sizes to lower where an engine does not fit in memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from forerun.engine.config import EngineConfig


@contextmanager
def fitting_memory(config: EngineConfig) -> Iterator[None]:
    """Gives a MemoryError of the block a message that names the sizes and their flags: the native
    module's own is "std::bad_alloc"."""
    try:
        yield
    except MemoryError as error:
        raise MemoryError(
            f"the weights, a KV cache of {config.kv_tokens} tokens in {config.dtype} and steps of"
            f" {config.max_rows} rows do not fit in memory; lower --kv-tokens or --prefill-chunk,"
            " or take a smaller model"
        ) from error

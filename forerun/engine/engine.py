"""Owns a model, its paged KV cache and the threads that run it; refuses to know what a round is.

The native module runs a whole forward in one call. This side keeps the books: which pages a
sequence holds, and how many of its tokens are cached.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import replace

import numpy as np

from forerun import _native
from forerun.engine.config import EngineConfig
from forerun.engine.interface import EngineInfo, Rows, RowsOut, Sequence
from forerun.engine.memory import fitting_memory
from forerun.engine.native_config import native_config
from forerun.engine.pages import PagePool
from forerun.engine.weights import Progress, angles, load_model
from forerun.models import Checkpoint, ModelConfig


class Engine:
    """The engine protocol of `forerun.engine.interface` over the native module.

    Everything but `info` is called from one thread.
    """

    def __init__(self, native: _native.Engine, info: EngineInfo, cache_pages: int) -> None:
        """cache_pages: see PagePool."""
        self._native = native
        self._info = info
        self._pool = PagePool(info.pages_total, info.page_size, cache_pages)
        self._new_rows: dict[Sequence, int] = {}

    @classmethod
    def load(
        cls, checkpoint: Checkpoint, config: EngineConfig, progress: Progress | None = None
    ) -> Engine:
        """Reads the weights and makes the cache. progress: (bytes done, bytes in all).

        Raises ValueError for a configuration or a level that cannot run, naming it, and MemoryError
        for one that does not fit.
        """
        model_config = checkpoint.config
        native_options = native_config(config)
        pages = native_options["pages"]
        max_context = min(
            config.max_context or model_config.max_positions,
            model_config.max_positions,
            pages * config.page_size,
        )
        with fitting_memory(config):
            model, fingerprint = load_model(checkpoint, config.vocab_size, progress)
            cos, sin = angles(model_config.rope, model_config.head_dim, max_context)
            native = _native.Engine(model=model, cos=cos, sin=sin, **native_options)
        info = EngineInfo(
            isa=native_options["isa"],
            dtype=config.dtype,
            threads=native_options["threads"],
            page_size=config.page_size,
            pages_total=pages,
            max_rows=config.max_rows,
            max_context=max_context,
            weight_bytes=model.weight_bytes,
            vocab_size=min(config.vocab_size or model_config.vocab_size, model_config.vocab_size),
            hidden_size=model_config.hidden_size,
            num_layers=model_config.num_layers,
            model_fingerprint=fingerprint,
        )
        return cls(native, info, _cache_pages(config, model_config, pages))

    @property
    def info(self) -> EngineInfo:
        return replace(self._info)

    @property
    def pages_free(self) -> int:
        return self._pool.free

    @property
    def pages_cached(self) -> int:
        return self._pool.cached

    @property
    def pages_evicted(self) -> int:
        return self._pool.evicted

    def open(self) -> Sequence:
        return Sequence()

    def reserve(self, sequence: Sequence, length: int) -> bool:
        return self._pool.grow(sequence, length)

    def reuse(self, sequence: Sequence, token_ids: SequenceOf[int]) -> int:
        return self._pool.reuse(sequence, token_ids)

    def share(self, sequence: Sequence, token_ids: SequenceOf[int]) -> None:
        self._pool.share(sequence, token_ids)

    def forward(self, batch: SequenceOf[Rows]) -> list[RowsOut]:
        """Raises ValueError for a batch out of limits, or rows without reserved pages."""
        taps = sorted({tap for rows in batch for tap in rows.taps})
        predictions, hidden = self._native.forward(
            [
                (
                    # The one place where the length of a forward is made.
                    rows.sequence.length + len(rows.token_ids),
                    np.ascontiguousarray(rows.token_ids, dtype=np.int32),
                    None
                    if rows.parents is None
                    else np.ascontiguousarray(rows.parents, dtype=np.int32),
                    np.asarray(rows.sequence.pages, dtype=np.int32),
                    len(rows.token_ids) - _predicted(rows),
                )
                for rows in batch
            ],
            taps,
        )
        self._new_rows = {rows.sequence: len(rows.token_ids) for rows in batch}
        outs: list[RowsOut] = []
        first_row = first_prediction = 0
        for rows in batch:
            last_row = first_row + len(rows.token_ids)
            last_prediction = first_prediction + _predicted(rows)
            states = None
            if rows.taps and hidden is not None:
                chosen = [taps.index(tap) for tap in rows.taps]
                states = np.ascontiguousarray(hidden[chosen, first_row:last_row].transpose(1, 0, 2))
            outs.append(RowsOut(predictions[first_prediction:last_prediction], states))
            first_row, first_prediction = last_row, last_prediction
        return outs

    def commit(self, accepted: SequenceOf[tuple[Sequence, SequenceOf[int] | int]]) -> None:
        """Raises ValueError for rows that the last forward did not have."""
        for sequence, rows in accepted:
            new = self._new_rows.pop(sequence, 0)
            count = rows if isinstance(rows, int) else len(rows)
            last = count - 1 if isinstance(rows, int) else max(rows, default=-1)
            if not 0 <= last + 1 <= new or count < 0:
                raise ValueError(
                    f"accepted rows reach to {last}, but the last forward had {new} new rows "
                    "of this sequence; commit what it ran, once"
                )
            if not isinstance(rows, int):
                self._native.compact(
                    np.asarray(sequence.pages, dtype=np.int32),
                    sequence.length,
                    np.asarray(rows, dtype=np.int32),
                )
            sequence.length += count
            self._pool.shrink(sequence, sequence.length)

    def truncate(self, sequence: Sequence, length: int) -> None:
        """Raises ValueError for a length beyond what is cached, or inside a shared page."""
        if not 0 <= length <= sequence.length:
            raise ValueError(f"length is {length}; it must be 0 to {sequence.length}")
        self._pool.shrink(sequence, length)
        sequence.length = length
        self._new_rows.pop(sequence, None)

    def release(self, sequence: Sequence) -> None:
        self.truncate(sequence, 0)

    def token_kv(self, sequence: Sequence, position: int) -> bytes:
        """Keys and values of one cached token in all layers, to compare caches bit for bit."""
        page = sequence.pages[position // self._info.page_size]
        return self._native.token_kv(page * self._info.page_size + position % self._info.page_size)

    def poison_free_pages(self) -> None:
        """Fills the free pages with NaN: whatever a test then finds was read from a stale slot."""
        for page in self._pool.free_pages():
            self._native.poison(page)


def _cache_pages(config: EngineConfig, model: ModelConfig, pages: int) -> int:
    """Pages of the pool that may be kept while nobody holds them."""
    if config.prefix_cache_bytes is None:
        return pages
    element_bytes = 2 if config.dtype == "bfloat16" else 4
    token_bytes = 2 * model.num_layers * model.num_kv_heads * model.head_dim * element_bytes
    return min(pages, config.prefix_cache_bytes // (token_bytes * config.page_size))


def _predicted(rows: Rows) -> int:
    """How many rows, from the last one back, are predicted."""
    return {"all": len(rows.token_ids), "last": 1, "none": 0}[rows.predict]

"""Owns a draft head: its weights, its paged KV cache and the threads that run it.

A round is one native call: the committed rows that the cache lacks, then one pass a depth of the
tree. This side keeps the books, as for a target's engine.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from forerun import _native
from forerun.engine.config import EngineConfig
from forerun.engine.interface import Sequence
from forerun.engine.memory import fitting_memory
from forerun.engine.native_config import native_config
from forerun.engine.pages import PagePool
from forerun.engine.weights import angles, row_blocks
from forerun.models import Checkpoint
from forerun.models.draft_head import HeadCheckpoint


@dataclass(frozen=True, slots=True)
class HeadInfo:
    """What a head needs and holds. taps: see HeadConfig. feature_size: elements of one row of
    hidden states. max_context: positions. max_rows: committed rows of all sessions in one call."""

    taps: tuple[int, ...]
    feature_size: int
    max_context: int
    max_rows: int
    page_size: int
    pages_total: int
    weight_bytes: int


@dataclass(slots=True)
class HeadRows:
    """One session's part of a round.

    features: uint16 holding bfloat16 bits, [n, feature_size], the target's hidden states of the
    next n positions behind sequence.length. token_ids: int32 [n], for each of them the token at
    the position after it. nodes, depth: the largest tree wanted; 0 caches the rows and no more.
    """

    sequence: Sequence
    features: NDArray[np.uint16]
    token_ids: NDArray[np.int32]
    nodes: int = 0
    depth: int = 0


@dataclass(frozen=True, slots=True)
class DraftedNodes:
    """Nodes below the root, the likeliest first. token_ids, parents: int32 [n]; parent -1 is the
    root, and parents come first. probabilities: float32 [n], given the parent."""

    token_ids: NDArray[np.int32]
    parents: NDArray[np.int32]
    probabilities: NDArray[np.float32]


class DraftHead:
    """A draft head over the native module. Everything but `info` is called from one thread."""

    def __init__(self, native: _native.DraftHead, info: HeadInfo) -> None:
        self.info = info
        self._native = native
        self._pool = PagePool(info.pages_total, info.page_size)

    @classmethod
    def load(
        cls, head: HeadCheckpoint, target: Checkpoint, config: EngineConfig, top_k: int = 8
    ) -> DraftHead:
        """Reads the weights, from the target those that the head shares with it.

        top_k: children of a node at most. Ids from config.vocab_size on are never proposed. Raises
        ValueError for what cannot run, naming it, and MemoryError for what does not fit.
        """
        shape = head.config
        kept = head.draft_ids < (config.vocab_size or shape.vocab_size)
        weights = _native.HeadWeights(
            feature_size=len(shape.taps) * shape.target_hidden_size,
            hidden_size=shape.hidden_size,
            intermediate_size=shape.intermediate_size,
            heads=shape.num_heads,
            kv_heads=shape.num_kv_heads,
            head_dim=shape.head_dim,
            vocab_rows=shape.vocab_size,
            rms_norm_eps=shape.rms_norm_eps,
            fused=shape.fused,
            passes_norm=shape.passes_norm,
            normed_residual=shape.normed_residual,
            draft_ids=head.draft_ids[kept].tolist(),
        )
        for part, size in head.parts.items():
            if len(size) == 1:
                weights.load_vector(part, head.read_rows(part, 0, size[0]))
            else:
                _load_matrix(weights, part, size, partial(head.read_rows, part), kept)
        for part, name in head.from_target.items():
            size = target.tensor_shapes[name]
            _load_matrix(weights, part, size, partial(target.read_rows, name), kept)
        weights.check_complete()

        native_options = native_config(config)
        pages = native_options["pages"]
        max_context = min(
            config.max_context or target.config.max_positions, pages * config.page_size
        )
        with fitting_memory(config):
            cos, sin = angles(shape.rope, shape.head_dim, max_context)
            native = _native.DraftHead(
                weights=weights, cos=cos, sin=sin, top_k=top_k, **native_options
            )
        info = HeadInfo(
            taps=shape.taps,
            feature_size=len(shape.taps) * shape.target_hidden_size,
            max_context=max_context,
            max_rows=config.max_rows,
            page_size=config.page_size,
            pages_total=pages,
            weight_bytes=weights.weight_bytes,
        )
        return cls(native, info)

    @property
    def pages_free(self) -> int:
        return self._pool.free

    def open(self) -> Sequence:
        """An empty sequence, which holds no pages."""
        return Sequence()

    def reserve(self, sequence: Sequence, length: int) -> bool:
        """Holds pages for `length` rows; False, and no change, where the pool cannot."""
        return self._pool.grow(sequence, length)

    def draft(
        self, batch: SequenceOf[HeadRows], min_product: float, seconds: float
    ) -> list[DraftedNodes]:
        """Caches the rows, whose sequences grow by them, and drafts a tree for each session.

        Pages for the new rows and `nodes` more must be held. min_product: nodes whose path is less
        probable are not proposed. seconds: the last pass begins so that it should end by then.
        Raises ValueError for rows out of limits or without pages.
        """
        drafted = self._native.draft(
            [
                (
                    rows.sequence.length,
                    np.ascontiguousarray(rows.features),
                    np.ascontiguousarray(rows.token_ids, dtype=np.int32),
                    np.asarray(rows.sequence.pages, dtype=np.int32),
                    rows.nodes,
                    rows.depth,
                )
                for rows in batch
            ],
            min_product,
            seconds,
        )
        for rows in batch:
            rows.sequence.length += len(rows.token_ids)
            self._pool.shrink(rows.sequence, rows.sequence.length)
        return [DraftedNodes(*nodes) for nodes in drafted]

    def release(self, sequence: Sequence) -> None:
        """Frees all pages of a sequence, which is not used again; idempotent."""
        sequence.length = 0
        self._pool.shrink(sequence, 0)


def _load_matrix(
    weights: _native.HeadWeights,
    part: str,
    size: tuple[int, ...],
    read: Callable[[int, int], NDArray[np.uint16]],
    kept: NDArray[np.bool_],
) -> None:
    """kept: of the head's rows, those to load; of every other part it is all."""
    loaded = 0
    for start, stop in row_blocks(*size):
        rows = read(start, stop)
        if part == "head":
            rows = rows[kept[start:stop]]
        if len(rows):
            weights.load_rows(part, loaded, rows)
            loaded += len(rows)

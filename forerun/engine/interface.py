"""What a target engine does: batches of rows in, the target's own next tokens out.

Owns the shapes that a scheduler and an engine share; a scripted engine in tests implements the same
protocol. Knows nothing of rounds, budgets or messages.

One length: `Sequence.length` is the only record of how much is cached. The rows of a forward stand
behind it, and everything downstream derives positions and prefix from the two.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What an engine runs, and its limits.

    isa: level of the kernels ("amx", "avx512_bf16", "avx512", "avx2", "scalar"); dtype: "bfloat16"
    or "float32", of activations and KV; page_size: tokens in a page; pages_total: pages in the
    pool; max_rows: rows of all sequences in one forward; max_context: tokens of one sequence;
    vocab_size: predictions are 0 to vocab_size - 1; model_fingerprint: what tells
    its weights and configuration from others.
    """

    isa: str
    dtype: str
    threads: int
    page_size: int
    pages_total: int
    max_rows: int
    max_context: int
    weight_bytes: int
    vocab_size: int
    hidden_size: int
    num_layers: int
    model_fingerprint: str


@dataclass(slots=True, eq=False)
class Sequence:
    """One sequence's cache: the KV of `length` tokens, in `pages` (page numbers, in order).

    keys: names of its first pages, by content, as far as others may read them: these are full, and
    never written to again.
    """

    length: int = 0
    pages: list[int] = field(default_factory=list)
    keys: list[bytes] = field(default_factory=list)


@dataclass(slots=True)
class Rows:
    """New tokens of one sequence in a forward.

    token_ids: int32 [n]. parents: int32 [n], parents[0] == -1 and parents[i] < i; None is a chain.
    predict: which rows' next tokens are wanted. taps: ascending, 0 to num_layers: the residual
    stream entering that layer; num_layers is the states after the final norm.
    """

    sequence: Sequence
    token_ids: NDArray[np.int32]
    parents: NDArray[np.int32] | None
    predict: Literal["all", "last", "none"]
    taps: tuple[int, ...] = ()


@dataclass(slots=True)
class RowsOut:
    """predictions: int32 [n], [1] or [0], the target's argmax after each row (ties: lowest id;
    -1: no logit is a number).
    hidden: uint16 holding bfloat16 bits, [n, taps, hidden_size]; None without taps."""

    predictions: NDArray[np.int32]
    hidden: NDArray[np.uint16] | None


class TargetEngine(Protocol):
    """The target model and its paged KV pool. One thread calls everything but `info`."""

    @property
    def info(self) -> EngineInfo: ...

    @property
    def pages_free(self) -> int:
        """Pages of the pool that no sequence holds, and that are not cached either."""
        ...

    @property
    def pages_cached(self) -> int:
        """Pages that no sequence holds, kept for prompts that begin alike until `reserve` needs
        them. Free, cached and held pages together are info.pages_total."""
        ...

    @property
    def pages_evicted(self) -> int:
        """How often a cached page was given up, since the start."""
        ...

    def open(self) -> Sequence:
        """An empty sequence, which holds no pages."""
        ...

    def reserve(self, sequence: Sequence, length: int) -> bool:
        """Holds pages for `length` tokens; False (and nothing changed) when the pool cannot."""
        ...

    def reuse(self, sequence: Sequence, token_ids: SequenceOf[int]) -> int:
        """Takes the KV of a sequence's next tokens from pages that `share` has made known, page by
        page as far as there are any. token_ids: its tokens from the first one on, as far as they
        may come from there. Returns how many tokens `length` has grown by."""
        ...

    def share(self, sequence: Sequence, token_ids: SequenceOf[int]) -> None:
        """Makes the full pages of a sequence known to `reuse`. token_ids: its tokens from the first
        one on, at least `length` of them. They are verified: `truncate` may not cut them again but
        at the edge of a page."""
        ...

    def forward(self, batch: SequenceOf[Rows]) -> list[RowsOut]:
        """Runs the rows of all sequences, at most info.max_rows in all. Their KV goes to the slots
        behind each sequence's length, which `reserve` has held before."""
        ...

    def commit(self, accepted: SequenceOf[tuple[Sequence, SequenceOf[int] | int]]) -> None:
        """Keeps rows of the last forward: ascending indices of one path from row 0, or the first n.
        Their KV moves up behind the prefix, `length` grows, and pages beyond it are freed."""
        ...

    def truncate(self, sequence: Sequence, length: int) -> None:
        """Forgets all but the first `length` cached tokens and frees the pages behind them."""
        ...

    def release(self, sequence: Sequence) -> None:
        """Frees all pages of a sequence, which is not used again; idempotent."""
        ...

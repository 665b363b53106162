"""Drafts with a head that reads the target's own hidden states: EAGLE-1 to -3, and the layer for
multi-token prediction that some models bring.

Owns the KV of the head: a row a committed token but the last, made of the target's hidden states at
its position and the token behind it, and kept equal to those of a fresh head. Rows of proposed
tokens are of one round and never kept.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from draft_server.drafters.base import DrafterInfo, DraftState
from forerun.engine.draft_head import DraftedNodes, HeadRows
from forerun.tree import Budget, Tree

if TYPE_CHECKING:
    from forerun.engine.draft_head import DraftHead
    from forerun.engine.interface import Sequence as KvSequence

# Rows of a session that are worth a pass of their own while no session waits for a tree.
_WARM_ROWS = 64
# The same of one that was never asked for a tree, beside others: it may never be, and until then
# the time is better spent on their prompts. Its hidden states must not pile up, though: they take
# more room than their KV.
_UNASKED_ROWS = 512
_FEW_SESSIONS = 2


@dataclass(slots=True)
class HeadState(DraftState):
    """sequence: the KV of this session. waiting: hidden states that have come and are not cached
    yet, blocks of [rows, feature_size] in order. known: positions whose hidden states came. asked:
    whether a tree was ever wanted."""

    sequence: KvSequence | None = None
    waiting: list[NDArray[np.uint16]] = field(default_factory=list)
    known: int = 0
    asked: bool = False

    @property
    def cached(self) -> int:
        return self.sequence.length if self.sequence is not None else 0

    @property
    def ready(self) -> int:
        """Rows that can be cached: their hidden states and the token behind them are known."""
        return min(self.known, len(self.committed) - 1) - self.cached

    def take(self, rows: int) -> NDArray[np.uint16]:
        """The hidden states of the next rows; what is left goes on waiting."""
        block = self.waiting[0] if len(self.waiting) == 1 else np.concatenate(self.waiting)
        self.waiting = [block[rows:]] if rows < len(block) else []
        return block[:rows]


class HeadDrafter:
    """The methods `eagle`, `eagle3` and `mtp`.

    min_product: nodes whose path is less probable are not proposed.
    """

    def __init__(self, name: str, head: DraftHead, min_product: float) -> None:
        self._head = head
        self._min_product = min_product
        self._states: dict[int, HeadState] = {}
        self.info = DrafterInfo(name, hidden_taps=head.info.taps, max_context=head.info.max_context)

    def open(self, prompt_ids: Sequence[int]) -> HeadState:
        state = HeadState(list(prompt_ids))
        self._states[id(state)] = state
        return state

    def advance(self, state: HeadState, token_ids: Sequence[int]) -> None:
        state.committed.extend(token_ids)

    def feed(self, state: HeadState, first_position: int, hidden: NDArray[np.uint16]) -> None:
        """Takes the target's hidden states of consecutive positions. Those that are known already,
        as after a session was opened again, are dropped.

        Raises ValueError for a gap, or rows of another size."""
        if hidden.ndim != 2 or hidden.shape[1] != self._head.info.feature_size:
            raise ValueError(
                f"hidden states have shape {hidden.shape}; "
                f"expected rows of {self._head.info.feature_size}"
            )
        if first_position > state.known:
            raise ValueError(
                f"hidden states begin at position {first_position}; expected {state.known}"
            )
        fresh = hidden[state.known - first_position :]
        if len(fresh):
            state.waiting.append(fresh)
            state.known += len(fresh)

    def draft(
        self, batch: Sequence[tuple[HeadState, Budget]], seconds: float = math.inf
    ) -> list[Tree]:
        rows: list[HeadRows] = []
        drafting: list[HeadState | None] = []
        room = self._head.info.max_rows
        # Those that miss the least first: they leave room for others.
        for state, budget in sorted(batch, key=lambda entry: entry[0].ready):
            state.fallback = ""
            state.asked = state.asked or budget.nodes > 0
            count = min(state.ready, room, self._context_left(state))
            nodes, depth = self._limits(state, budget, count)
            if count < 1 or not self._reserve(state, count + nodes):
                continue
            rows.append(self._rows(state, count, nodes, depth))
            drafting.append(state if nodes else None)
            room -= count
        drafted = self._head.draft(rows, self._min_product, seconds) if rows else []
        trees = {
            id(state): _tree(state.committed[-1], nodes)
            for state, nodes in zip(drafting, drafted, strict=True)
            if state is not None
        }
        return [trees.get(id(state)) or state.root_only() for state, _ in batch]

    def warm(self) -> bool:
        for state in self._states.values():
            count = min(state.ready, self._head.info.max_rows, self._context_left(state))
            soon = state.asked or len(self._states) <= _FEW_SESSIONS
            least = _WARM_ROWS if soon else min(_UNASKED_ROWS, self._head.info.max_rows)
            if count >= least and self._reserve(state, count):
                self._head.draft([self._rows(state, count, 0, 0)], 0.0, math.inf)
                return True
        return False

    def close(self, state: HeadState) -> None:
        self._states.pop(id(state), None)
        if state.sequence is not None:
            self._head.release(state.sequence)
            state.sequence = None
        state.waiting, state.known = [], 0

    def _limits(self, state: HeadState, budget: Budget, count: int) -> tuple[int, int]:
        """Nodes and depth of the tree that can follow when `count` rows are cached; 0 and 0, with
        the reason noted, where none can."""
        length = len(state.committed)
        depth = min(budget.depth, self._head.info.max_context - length + 2)
        if not state.known:
            return 0, 0  # a session without hidden states
        if depth < 1:
            state.fallback = "draft_context"
        elif state.cached + count < length - 1 or count < 1:
            state.fallback = "catch_up"
        elif budget.nodes > 0:
            return budget.nodes, depth
        return 0, 0

    def _context_left(self, state: HeadState) -> int:
        return self._head.info.max_context - state.cached

    def _reserve(self, state: HeadState, rows: int) -> bool:
        if state.sequence is None:
            state.sequence = self._head.open()
        if self._head.reserve(state.sequence, state.cached + rows):
            return True
        state.fallback = "draft_kv_full"
        return False

    def _rows(self, state: HeadState, count: int, nodes: int, depth: int) -> HeadRows:
        assert state.sequence is not None, "_reserve comes first"
        tokens = state.committed[state.cached + 1 : state.cached + 1 + count]
        token_ids = np.asarray(tokens, dtype=np.int32)
        return HeadRows(state.sequence, state.take(count), token_ids, nodes, depth)


def _tree(root: int, nodes: DraftedNodes) -> Tree:
    return Tree(
        (root, *nodes.token_ids.tolist()),
        (-1, *(nodes.parents + 1).tolist()),
        (1.0, *np.minimum(nodes.probabilities, 1.0).tolist()),
    )

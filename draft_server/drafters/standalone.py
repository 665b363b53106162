"""Drafts with a second, smaller model through the same engine as the target's.

Owns the KV of that model: one sequence a session, kept equal to a fresh one of the committed tokens
(Leviathan et al., arXiv:2211.17192, in the greedy case). A chain is drafted by argmax, one forward
a depth for all sessions of the batch.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np

from draft_server.drafters.base import DrafterInfo, DraftState
from forerun.engine.interface import Rows
from forerun.tree import Budget, Tree

if TYPE_CHECKING:
    from forerun.engine.interface import Sequence as KvSequence
    from forerun.engine.interface import TargetEngine


@dataclass(slots=True)
class StandaloneState(DraftState):
    """sequence: the KV of this session. cached: the tokens whose KV it holds, committed ones and
    then drafted ones. settled: how many of `cached` are known to be committed. prompt_length: to
    prefill ahead of the first round."""

    sequence: KvSequence | None = None
    cached: list[int] = field(default_factory=list)
    settled: int = 0
    prompt_length: int = 0

    @property
    def missing(self) -> int:
        """Committed tokens without KV, the root among them: at least 1."""
        return len(self.committed) - len(self.cached)


@dataclass(slots=True)
class _Chain:
    """What one session drafts in a call."""

    state: StandaloneState
    sequence: KvSequence
    depth: int
    token_ids: list[int] = field(default_factory=list)
    ended: bool = False


class StandaloneDrafter:
    """The method `standalone`.

    vocab_size: ids below are shared with the target; a chain ends before any other.
    prefill_chunk: rows of a prompt in one piece, so that it does not hold up other sessions.
    """

    def __init__(self, engine: TargetEngine, vocab_size: int, prefill_chunk: int = 256) -> None:
        self._engine = engine
        self._vocab_size = vocab_size
        self._max_rows = engine.info.max_rows
        self._max_context = engine.info.max_context
        self._chunk = min(prefill_chunk, self._max_rows)
        self._states: dict[int, StandaloneState] = {}
        self.info = DrafterInfo("standalone", max_context=self._max_context)

    def open(self, prompt_ids: Sequence[int]) -> StandaloneState:
        state = StandaloneState(list(prompt_ids), prompt_length=len(prompt_ids))
        self._states[id(state)] = state
        return state

    def advance(self, state: StandaloneState, token_ids: Sequence[int]) -> None:
        state.committed.extend(token_ids)
        self._settle(state)

    def draft(
        self, batch: Sequence[tuple[StandaloneState, Budget]], seconds: float = math.inf
    ) -> list[Tree]:
        end = time.monotonic() + seconds
        chains = self._admit(batch)
        self._first_tokens(chains)
        step = 0.0  # a depth takes about as long as the one before
        for depth in range(1, max((chain.depth for chain in chains), default=0)):
            began = time.monotonic()
            if began + step > end:
                break
            self._next_tokens([chain for chain in chains if chain.depth > depth])
            step = time.monotonic() - began
        drafted = {id(chain.state): chain.token_ids for chain in chains}
        return [
            Tree.chain([state.committed[-1], *drafted.get(id(state), ())]) for state, _ in batch
        ]

    def warm(self) -> bool:
        for state in self._states.values():
            if len(state.committed) > self._max_context:
                continue
            self._start(state)
            left = state.prompt_length - 1 - len(state.cached)
            if left > 0 and self._feed_prefix(state, min(self._chunk, left)):
                return True
        return False

    def close(self, state: StandaloneState) -> None:
        self._states.pop(id(state), None)
        self._release(state)

    def _settle(self, state: StandaloneState) -> None:
        """Drops the KV of drafted tokens that were not accepted, and that of the root: it is fed
        again to predict what follows it."""
        sequence = state.sequence
        if sequence is None:
            return
        # A forward that failed may have left rows that were not committed to the sequence.
        del state.cached[sequence.length :]
        stop = min(len(state.cached), len(state.committed) - 1)
        settled = min(state.settled, stop)
        while settled < stop and state.cached[settled] == state.committed[settled]:
            settled += 1
        if settled < sequence.length:
            self._engine.truncate(sequence, settled)
        del state.cached[settled:]
        state.settled = settled
        self._engine.share(sequence, state.cached)

    def _admit(self, batch: Sequence[tuple[StandaloneState, Budget]]) -> list[_Chain]:
        """The sessions that can draft now, those that miss the least first; for the others, the
        reason is noted and what they miss is fed as far as rows are left."""
        chains: list[_Chain] = []
        room = self._max_rows
        for state, budget in sorted(batch, key=lambda entry: entry[0].missing):
            state.fallback = ""
            self._settle(state)
            # A chain of k feeds the root and k - 1 drafted tokens.
            length = len(state.committed)
            depth = min(budget.depth, budget.nodes, self._max_context - length + 1)
            if min(budget.depth, budget.nodes) < 1:
                continue
            if depth < 1:
                state.fallback = "draft_context"
                self._release(state)
                continue
            self._start(state)
            if state.missing > min(room, self._chunk):
                state.fallback = "catch_up"
                rows = min(room, self._chunk, state.missing - 1)
                if rows > 0 and self._feed_prefix(state, rows):
                    room -= rows
                continue
            sequence = self._room(state, length)
            if sequence is not None:
                chains.append(_Chain(state, sequence, depth))
                room -= state.missing
        return chains

    def _start(self, state: StandaloneState) -> None:
        """Gives a session its sequence, with what other sessions have cached of its tokens."""
        if state.sequence is None:
            state.sequence = self._engine.open()
            state.settled = self._engine.reuse(state.sequence, state.committed[:-1])
            state.cached = state.committed[: state.settled]

    def _feed_prefix(self, state: StandaloneState, rows: int) -> bool:
        """Feeds the next `rows` committed tokens, if there is room for their KV."""
        sequence = self._room(state, len(state.cached) + rows)
        if sequence is not None:
            self._forward([(state, sequence, self._uncached(state, rows))], "none")
        return sequence is not None

    def _first_tokens(self, chains: Sequence[_Chain]) -> None:
        """Feeds what the sessions miss, up to the root."""
        fed = [
            (chain.state, chain.sequence, self._uncached(chain.state, chain.state.missing))
            for chain in chains
        ]
        self._append(chains, self._forward(fed, "last"))

    def _next_tokens(self, chains: Sequence[_Chain]) -> None:
        """Feeds the token that each chain drafted last."""
        live = []
        for chain in chains:
            # Without room for one more token the chain is as long as it gets.
            if not chain.ended and self._room(chain.state, chain.sequence.length + 1) is None:
                chain.ended, chain.state.fallback = True, ""
            if not chain.ended:
                live.append(chain)
        fed = [(chain.state, chain.sequence, chain.token_ids[-1:]) for chain in live]
        self._append(live, self._forward(fed, "last"))

    def _append(self, chains: Sequence[_Chain], predictions: Sequence[int]) -> None:
        for chain, token_id in zip(chains, predictions, strict=True):
            # A padding row of the embedding, a token that the target does not have, or none at all.
            chain.ended = not 0 <= token_id < self._vocab_size
            if not chain.ended:
                chain.token_ids.append(token_id)

    def _forward(
        self,
        fed: Sequence[tuple[StandaloneState, KvSequence, Sequence[int]]],
        predict: Literal["last", "none"],
    ) -> list[int]:
        """Feeds rows and keeps their KV; the argmax after the last row of each, where asked."""
        if not fed:
            return []
        outputs = self._engine.forward(
            [
                Rows(sequence, np.asarray(token_ids, dtype=np.int32), None, predict)
                for _, sequence, token_ids in fed
            ]
        )
        self._engine.commit([(sequence, len(token_ids)) for _, sequence, token_ids in fed])
        for state, _, token_ids in fed:
            state.cached.extend(token_ids)
        return [int(output.predictions[-1]) for output in outputs if predict == "last"]

    def _uncached(self, state: StandaloneState, rows: int) -> list[int]:
        start = len(state.cached)
        return state.committed[start : start + rows]

    def _room(self, state: StandaloneState, length: int) -> KvSequence | None:
        """The sequence with pages for `length` tokens, or None (and the reason noted)."""
        assert state.sequence is not None
        if self._engine.reserve(state.sequence, length):
            return state.sequence
        state.fallback = "draft_kv_full"
        return None

    def _release(self, state: StandaloneState) -> None:
        if state.sequence is not None:
            self._engine.release(state.sequence)
            state.sequence, state.cached, state.settled = None, [], 0

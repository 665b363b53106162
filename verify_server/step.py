"""One step of the target: which rows go into it, and what each of them belongs to.

Continuous batching (Orca, OSDI '22): whatever is ready goes in, and nobody is waited for. Trees and
plain decodes come first, those longest ready before the others; prompts share the rest in turn, but
a quarter of the rows is theirs while they need it, so neither starves the other. While sessions
decode, time bounds a step as well as rows do (`verify_server.sizing`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from forerun.engine.interface import Rows
from forerun.tree import Tree
from verify_server import sizing
from verify_server.config import VerifyConfig
from verify_server.costs import StepCosts
from verify_server.residency import Residency
from verify_server.sessions import Dropped, Phase, Session


@dataclass(slots=True)
class Step:
    """Rows for one forward. `trees[i]` is None where rows[i] are of a prompt. weighed_rows: all of
    them, as `StepCosts` counts."""

    sessions: list[Session] = field(default_factory=list)
    rows: list[Rows] = field(default_factory=list)
    trees: list[Tree | None] = field(default_factory=list)
    weighed_rows: float = 0.0

    def add(self, session: Session, rows: Rows, tree: Tree | None, weighed_rows: float) -> None:
        self.weighed_rows += weighed_rows
        self.sessions.append(session)
        self.rows.append(rows)
        self.trees.append(tree)

    def count(self, *, prefill: bool) -> int:
        """Rows of prompts, or of trees and plain decodes."""
        pairs = zip(self.rows, self.trees, strict=True)
        return sum(len(rows.token_ids) for rows, tree in pairs if (tree is None) is prefill)


def decode_share(max_rows: int, prefill_rows: int) -> int:
    """Rows that decoding may take while `prefill_rows` rows of prompts are waiting."""
    return max_rows - min(prefill_rows, max_rows // 4)


def pack(
    residency: Residency,
    costs: StepCosts,
    config: VerifyConfig,
    *,
    now_ns: int,
    max_rows: int,
    on_drop: Callable[[Session, Dropped], None],
) -> Step:
    """The rows of the coming step; their pages are held. May move sessions out of the pool."""
    step = Step()
    decoding = residency.decoding
    prefilling = [s for s in residency.residents if s.phase is Phase.PREFILLING]
    waiting_rows = min(sum(map(_uncached, prefilling)), config.prefill_chunk)
    ready = [session for session in decoding if session.ready_ns <= now_ns]
    ready.sort(key=lambda s: s.ready_ns)
    trees = [session.tree or Tree.root_only(session.committed[-1]) for session in ready]
    if config.adaptive and costs.fitted:
        trees = sizing.cut_trees(
            costs,
            trees,
            rates=[session.pace.rate for session in ready],
            weights=[costs.row_weight(len(session.committed)) for session in ready],
            beside=min(waiting_rows, sizing.LEAST_CHUNK),
            limit=sizing.decoding_limit_ns(config.step_ms),
        )
    room = decode_share(max_rows, waiting_rows)
    for session, tree in zip(ready, trees, strict=True):
        if session.phase is not Phase.DECODING:
            continue  # an older one took its pages
        if len(tree.token_ids) > room:
            continue  # the longest ready comes first, so at the latest in the next step
        placed = _hold(residency, session, tree, step, on_drop)
        if placed is not None:
            weight = costs.row_weight(len(session.committed))
            rows = len(placed.token_ids)
            step.add(session, _tree_rows(session, placed), placed, rows * weight)
            residency.to_back(session)
            room -= rows
    room = min(config.prefill_chunk, max_rows - step.count(prefill=False))
    plain_rows = costs.plain_rows(len(session.committed) for session in decoding)
    limit = sizing.prompt_limit_ns(costs, config.step_ms, plain_rows)
    least = sizing.LEAST_CHUNK
    for session in prefilling:
        if session.phase is not Phase.PREFILLING:
            continue  # an older one took its pages
        residency.reuse(session)
        assert session.sequence is not None
        context = session.sequence.length
        rows = min(room, _uncached(session))
        if decoding:
            taken = step.weighed_rows
            rows = sizing.prompt_rows(
                costs, limit=limit, taken=taken, context=context, least=least, most=rows
            )
        if rows == 0:
            break
        weighed_rows = rows * costs.row_weight(context + rows / 2)
        step.add(session, _prompt_rows(session, rows), None, weighed_rows)
        residency.to_back(session)
        room -= rows
        least = 0
    return step


def _hold(
    residency: Residency,
    session: Session,
    tree: Tree,
    step: Step,
    on_drop: Callable[[Session, Dropped], None],
) -> Tree | None:
    """Holds pages for a tree, or else for its root alone: what can be placed, None if nothing."""
    assert session.sequence is not None
    if residency.hold(session, session.sequence.length + len(tree.token_ids)):
        return tree
    if tree.num_nodes:
        session.tree = None
        session.due_ns = session.tree_received_ns
        on_drop(session, Dropped.NO_PAGES)
    if residency.make_room(session, session.sequence.length + 1, step.sessions):
        return Tree.root_only(session.committed[-1])
    return None


def _uncached(session: Session) -> int:
    assert session.sequence is not None
    return session.prefill_len - session.sequence.length


def _tree_rows(session: Session, tree: Tree) -> Rows:
    assert session.sequence is not None
    parents = np.array(tree.parents, np.int32) if tree.num_nodes else None
    return Rows(session.sequence, _ids(tree.token_ids), parents, "all", session.taps)


def _prompt_rows(session: Session, count: int) -> Rows:
    assert session.sequence is not None
    start = session.sequence.length
    stop = start + count
    first_token_next = session.round == 0 and stop == session.prefill_len
    # A session that comes back has sent the hidden states of its prompt, or the first part of them.
    taps = session.taps if session.round == 0 and stop > session.prompt_hidden_sent else ()
    ids = _ids(session.committed[start:stop])
    return Rows(session.sequence, ids, None, "last" if first_token_next else "none", taps)


def _ids(token_ids: Sequence[int]) -> np.ndarray:
    return np.array(token_ids, np.int32)

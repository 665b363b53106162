"""Conversions between messages and the plain objects of this package.

Owns no policy: limits are handed in, and what is wrong is raised, not mended.
"""

from __future__ import annotations

import math

from forerun import tree as trees
from forerun.stats import SessionStats
from forerun.tree import Budget, Tree
from forerun.v1 import tree_pb2, verify_pb2

# A confidence is one byte: -CONFIDENCE_STEPS * ln(probability). 1/16 nat is about 6 %, and 255 of
# them reach down to 1e-7, below any node worth a row.
CONFIDENCE_STEPS = 16


def quantise_confidence(probability: float) -> int:
    """The byte (0 to 255) of a probability; what is below 1.2e-7, 0 and NaN included, gives 255."""
    if not probability > 0:
        return 255
    return min(255, max(0, round(-CONFIDENCE_STEPS * math.log(probability))))


def dequantise_confidence(byte: int) -> float:
    """The probability of a byte; within 3.2 % of the original above 1.2e-7."""
    return math.exp(-byte / CONFIDENCE_STEPS)


def tree_to_pb(tree: Tree) -> tree_pb2.Tree:
    confidences = bytes(map(quantise_confidence, tree.confidences or ()))
    return tree_pb2.Tree(token_ids=tree.token_ids, parents=tree.parents, confidences=confidences)


def tree_from_pb(
    message: tree_pb2.Tree,
    *,
    vocab_size: int,
    max_nodes: int,
    max_depth: int,
    root_token_id: int,
    field: str = "tree",
) -> Tree:
    """The valid tree of a message; raises InvalidTree as `forerun.tree.validate` does."""
    trees.validate(
        message,
        vocab_size=vocab_size,
        max_nodes=max_nodes,
        max_depth=max_depth,
        root_token_id=root_token_id,
        field=field,
    )
    confidences = tuple(map(dequantise_confidence, message.confidences)) or None
    return Tree(tuple(message.token_ids), tuple(message.parents), confidences)


def budget_to_pb(budget: Budget) -> tree_pb2.Budget:
    return tree_pb2.Budget(nodes=budget.nodes, depth=budget.depth)


def budget_from_pb(message: tree_pb2.Budget) -> Budget:
    return Budget(nodes=message.nodes, depth=message.depth)


def stats_to_pb(stats: SessionStats) -> verify_pb2.SessionStats:
    return verify_pb2.SessionStats(
        rounds=stats.rounds,
        plain_steps=stats.plain_steps,
        drafted_nodes=stats.drafted,
        accepted=stats.accepted,
        accepted_by_depth=stats.accepted_by_depth,
        drafted_by_depth=stats.drafted_by_depth,
        emitted=stats.emitted,
        stale_trees=stats.stale_trees,
    )


def stats_from_pb(message: verify_pb2.SessionStats) -> SessionStats:
    return SessionStats(
        rounds=message.rounds,
        plain_steps=message.plain_steps,
        drafted=message.drafted_nodes,
        accepted=message.accepted,
        accepted_by_depth=list(message.accepted_by_depth),
        drafted_by_depth=list(message.drafted_by_depth),
        emitted=message.emitted,
        stale_trees=message.stale_trees,
    )

"""How much goes into a step: nodes that pay for their time, and as much of the prompts as leaves
decoding sessions an even pace. Output never depends on it; speed does.

Knows costs and trees, not pages. A node pays while tokens a second rise with it:
p(node) / tokens so far >= its time / time so far.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence

from forerun.tree import Tree
from verify_server.costs import StepCosts

# Prompts may make a step so many times as long as one without them, unless a limit is set.
STEP_FACTOR = 3.0
# Asking takes time that nodes do not tell of: less than this, in tokens a round, is not asked for.
LEAST_WORTH = 0.1
# Who waits for drafts beside others pays more than the wait: a session whose tree is late misses a
# step of theirs, and a draft server on the same cores slows their steps down.
WAIT_PRICE = 2.0
# Prompts get so many rows of every step, whatever it costs: they must come to an end.
LEAST_CHUNK = 8


def decoding_limit_ns(step_ms: float) -> float:
    """Nanoseconds that a step may take for the sake of proposals. step_ms: what is set, or 0."""
    return step_ms * 1e6 or math.inf


def prompt_limit_ns(costs: StepCosts, step_ms: float, plain_rows: float) -> float:
    """Nanoseconds that a step may take for the sake of prompts while sessions decode, whose weighed
    roots are `plain_rows`. step_ms: what is set, or 0."""
    return step_ms * 1e6 or STEP_FACTOR * costs.lean_ns(plain_rows)


def paying_nodes(
    costs: StepCosts, *, rate: float, plain_rows: float, most: int, limit: float
) -> int:
    """How many nodes of a chain pay where every decoding session has as many, at most `most`, and
    none where all of them together hardly do.

    rate: the chance that a node is accepted if its parent is; limit: see `decoding_limit_ns`.
    """
    tokens = chance = 1.0
    nodes, plain = 0, costs.decode_ns(plain_rows)
    before = plain
    while nodes < most:
        chance *= rate
        after = costs.decode_ns(plain_rows * (nodes + 2))
        if after > limit or not _pays(chance, tokens, before, after):
            break
        tokens, nodes, before = tokens + chance, nodes + 1, after
    return nodes if tokens * plain >= before + LEAST_WORTH * plain else 0


def worth(
    costs: StepCosts,
    *,
    accepted: int,
    rows: float,
    waited_ns: float,
    plain_rows: float,
    sessions: int,
) -> float:
    """What a round was worth, in tokens: those accepted, less those that plain decoding would have
    given in the time that it took.

    rows: weighed rows of its nodes; waited_ns: that the engine stood idle for its tree; plain_rows,
    sessions: the weighed roots of all that decode, and how many they are.
    """
    plain_ns = costs.decode_ns(plain_rows)
    if plain_ns <= 0:
        return float(accepted)
    price = WAIT_PRICE if sessions > 1 else 1.0
    took_ns = costs.decode_ns(plain_rows + rows) - plain_ns + price * waited_ns
    return accepted - sessions * took_ns / plain_ns


def cut_trees(
    costs: StepCosts,
    trees: Sequence[Tree],
    *,
    rates: Sequence[float],
    weights: Sequence[float],
    beside: float,
    limit: float,
) -> list[Tree]:
    """The trees of one step, each cut to its first nodes as far as they pay and the limit allows.
    The likeliest of all trees' next nodes is tried first.

    rates: for each tree the chance of a node if its parent is accepted, where the tree itself does
    not tell; weights: of a row of each tree; beside: other weighed rows that the step will have.
    """
    chances = [tree.chances(rate) for tree, rate in zip(trees, rates, strict=True)]
    kept = [0] * len(trees)
    tokens, rows = float(len(trees)), beside + sum(weights)
    heads = [(-chances[i][1], i) for i, tree in enumerate(trees) if tree.num_nodes]
    heapq.heapify(heads)
    price = costs.ns if beside else costs.decode_ns
    while heads:
        chance, i = heapq.heappop(heads)
        before, after = price(rows), price(rows + weights[i])
        if after > limit or not _pays(-chance, tokens, before, after):
            continue  # a row of another tree may be cheaper
        kept[i] += 1
        rows += weights[i]
        tokens -= chance
        if kept[i] < trees[i].num_nodes:
            heapq.heappush(heads, (-chances[i][kept[i] + 1], i))
    return [tree.first(nodes) for tree, nodes in zip(trees, kept, strict=True)]


def prompt_rows(
    costs: StepCosts, *, limit: float, taken: float, context: int, least: int, most: int
) -> int:
    """Rows of a prompt that a step has time for beside `taken` weighed rows: `least` at least, and
    never more than `most`. context: tokens of the prompt that are cached."""
    left = (costs.rows_within(limit) - taken) / costs.row_weight(context + most)
    return min(most, max(least, int(min(most, left))))


def _pays(chance: float, tokens: float, before: float, after: float) -> bool:
    return chance * before >= tokens * (after - before)

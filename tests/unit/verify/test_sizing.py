"""Nodes are run while they pay, and prompts get what time is left."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import accumulate, product

import pytest

from forerun.tree import Tree
from tests.fixtures.scripted_target import ScriptedTarget, hash_next
from verify_server.costs import StepCosts
from verify_server.sizing import (
    LEAST_CHUNK,
    LEAST_WORTH,
    WAIT_PRICE,
    cut_trees,
    decoding_limit_ns,
    paying_nodes,
    prompt_limit_ns,
    prompt_rows,
    worth,
)

FAR = math.inf


def affine(constant: float, row: float) -> StepCosts:
    costs = StepCosts(ScriptedTarget(hash_next(8)).info)
    for rows in (1, 200) * 3:
        costs.record(rows, constant + row * rows, lean=True)
    return costs


def best_nodes(costs: StepCosts, rate: float, sessions: int, most: int) -> int:
    """The number with the most tokens a second, found by trying all; 0 where that hardly pays."""
    tokens = list(accumulate(rate**k for k in range(most + 1)))
    steps = [costs.ns(sessions * (n + 1)) for n in range(most + 1)]
    best = max(range(most + 1), key=lambda n: tokens[n] / steps[n])
    return best if tokens[best] * steps[0] >= steps[best] + LEAST_WORTH * steps[0] else 0


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.3, 0.6, 0.9])
@pytest.mark.parametrize("sessions", [1, 2, 8, 32])
@pytest.mark.parametrize("row", [0.5, 2.0, 20.0])
def test_the_nodes_that_pay_give_the_most_tokens_a_second(
    rate: float, sessions: int, row: float
) -> None:
    costs = affine(16, row)
    most = paying_nodes(costs, rate=rate, plain_rows=sessions, most=12, limit=FAR)
    assert most == best_nodes(costs, rate, sessions, 12)


def test_budgets_fall_to_nothing_under_load() -> None:
    costs = affine(16, 1)
    nodes = [paying_nodes(costs, rate=0.6, plain_rows=n, most=8, limit=FAR) for n in range(1, 65)]
    assert nodes == sorted(nodes, reverse=True)
    assert nodes[0] >= 3 and nodes[-1] == 0


def test_a_limit_bounds_nodes_that_would_pay() -> None:
    costs = affine(16, 1)
    assert paying_nodes(costs, rate=1.0, plain_rows=2, most=8, limit=FAR) == 8
    assert paying_nodes(costs, rate=1.0, plain_rows=2, most=8, limit=26) == 4
    assert decoding_limit_ns(1.5) == prompt_limit_ns(costs, 1.5, 2) == 1.5e6
    assert decoding_limit_ns(0) == math.inf
    assert prompt_limit_ns(costs, 0, 2) == pytest.approx(3 * 18)


def tree(*chances: float) -> Tree:
    """A chain with these chances, each given the node before."""
    return replace(Tree.chain(range(len(chances) + 1)), confidences=(1.0, *chances))


def cut(costs: StepCosts, *trees: Tree, beside: float = 0, limit: float = FAR) -> list[int]:
    ones = [1.0] * len(trees)
    rates = [0.5] * len(trees)
    return [
        kept.num_nodes
        for kept in cut_trees(costs, trees, rates=rates, weights=ones, beside=beside, limit=limit)
    ]


def test_trees_are_cut_where_all_of_them_together_give_the_most_tokens_a_second() -> None:
    costs = affine(10, 1)
    chances = ([0.9, 0.8, 0.9, 0.3], [0.4, 0.9], [0.05, 0.9, 0.9], [])
    kept = cut(costs, *(tree(*chain) for chain in chances))

    def rate(counts: tuple[int, ...]) -> float:
        expected = [
            sum(accumulate(chain[:count], lambda a, b: a * b, initial=1.0))
            for chain, count in zip(chances, counts, strict=True)
        ]
        return sum(expected) / costs.ns(sum(counts) + len(counts))

    options = product(*(range(len(chain) + 1) for chain in chances))
    assert tuple(kept) == max(options, key=rate)
    assert kept == [3, 1, 0, 0]


def test_nodes_keep_their_numbers_and_confidences() -> None:
    branching = Tree((7, 4, 5, 9), (-1, 0, 0, 1), (1.0, 0.7, 0.2, 0.6))
    [kept] = cut_trees(affine(10, 1), [branching], rates=[0.0], weights=[1.0], beside=0, limit=13.5)
    assert kept == Tree((7, 4, 5), (-1, 0, 0), (1.0, 0.7, 0.2))


def test_a_tree_without_confidences_is_as_likely_as_the_session_s_drafts_were() -> None:
    costs = affine(10, 1.5)
    assert cut(costs, Tree.chain(range(9))) == cut(costs, tree(*[0.5] * 8)) == [2]


def test_prompts_that_wait_leave_trees_less_time() -> None:
    costs = affine(10, 1)
    sure = tree(*[1.0] * 20)
    assert cut(costs, sure, limit=25) == [14]
    assert cut(costs, sure, limit=25, beside=8) == [6]


def test_nothing_is_cut_where_rows_cost_nothing() -> None:
    assert cut(affine(0, 0), tree(*[0.01] * 5)) == [5]


def test_prompts_get_what_time_is_left_and_never_nothing() -> None:
    costs = affine(10, 1)

    def rows(limit: float, taken: float, most: int, least: int = LEAST_CHUNK) -> int:
        return prompt_rows(costs, limit=limit, taken=taken, context=0, least=least, most=most)

    assert rows(50, 4, 256) == 36
    assert rows(50, 4, 20) == 20
    assert rows(11, 4, 256) == LEAST_CHUNK
    assert rows(11, 4, 3) == 3
    assert rows(11, 4, 256, least=0) == 0


def test_a_round_is_worth_what_plain_decoding_would_not_have_given_meanwhile() -> None:
    costs = affine(16, 1)
    # Three sessions get a token each in 19: a node takes 1, waiting took 5.
    assert worth(costs, accepted=2, rows=3, waited_ns=5, plain_rows=3, sessions=3) == pytest.approx(
        2 - 3 * (3 + WAIT_PRICE * 5) / 19
    )
    # One alone holds nobody else up.
    assert worth(costs, accepted=2, rows=1, waited_ns=5, plain_rows=1, sessions=1) == pytest.approx(
        2 - (1 + 5) / 17
    )
    assert worth(costs, accepted=0, rows=0, waited_ns=0, plain_rows=3, sessions=3) == 0

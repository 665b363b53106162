"""Trees: shape, the rules of the encoding, greedy verification."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forerun.errors import InvalidTree
from forerun.stats import SessionStats
from forerun.tree import Tree, validate, verify_greedy

VOCAB_SIZE = 50
LIMITS: dict[str, Any] = {"vocab_size": VOCAB_SIZE, "max_nodes": 40, "max_depth": 40}


@st.composite
def trees(draw: st.DrawFn) -> Tree:
    """A valid tree; few tokens, so that siblings and cousins often look alike."""
    tokens, parents = [draw(st.integers(0, VOCAB_SIZE - 1))], [-1]
    used: set[tuple[int, int]] = set()
    for node in range(1, draw(st.integers(1, 30))):
        parent, token = draw(st.integers(0, node - 1)), draw(st.integers(0, 5))
        if (parent, token) not in used and len(parents) > parent:
            used.add((parent, token))
            tokens.append(token)
            parents.append(parent)
    return Tree(tuple(tokens), tuple(parents))


def check(tree: Any, **changes: Any) -> None:
    validate(tree, **{**LIMITS, "root_token_id": tree.token_ids[0], **changes})


def naive_verify(tree: Tree, predictions: list[int]) -> tuple[list[int], int]:
    """Tries every node: the deepest path that repeats the target's choices all the way."""
    best: list[int] = []
    for node in range(len(tree.token_ids)):
        path = tree.path(node)
        before = [0, *path[:-1]]
        agrees = all(
            tree.token_ids[child] == predictions[parent]
            for parent, child in zip(before, path, strict=False)
        )
        if agrees and len(path) > len(best):
            best = path
    return best, predictions[best[-1] if best else 0]


def shuffle_siblings(tree: Tree, random: Any) -> tuple[Tree, list[int]]:
    """The same tree in another order, and the old index of each new node."""
    children = tree.children()
    order, frontier = [0], list(children[0])
    while frontier:
        node = frontier.pop(random.randrange(len(frontier)))
        order.append(node)
        frontier += children[node]
    place = {old: new for new, old in enumerate(order)}
    parents = tuple(-1 if old == 0 else place[tree.parents[old]] for old in order)
    return Tree(tuple(tree.token_ids[old] for old in order), parents), order


@settings(deadline=None)
@given(trees())
def test_random_trees_are_valid(tree: Tree) -> None:
    check(tree)
    check(replace(tree, confidences=(1.0,) * len(tree.token_ids)))


@settings(deadline=None)
@given(trees())
def test_shape_is_consistent(tree: Tree) -> None:
    depths = tree.depths()
    assert tree.num_nodes == len(tree.token_ids) - 1
    assert tree.max_depth == max(depths)
    for node, depth in enumerate(depths):
        path = tree.path(node)
        assert len(path) == depth
        for parent, child in zip([0, *path], path, strict=False):
            assert child in tree.children()[parent]


def test_root_only_and_chain() -> None:
    assert Tree.root_only(7) == Tree((7,), (-1,))
    chain = Tree.chain([7, 8, 9])
    assert chain == Tree((7, 8, 9), (-1, 0, 1))
    assert (chain.num_nodes, chain.max_depth, chain.path(2)) == (2, 2, [1, 2])


@settings(deadline=None)
@given(trees(), st.data())
def test_verify_greedy_equals_a_naive_reference(tree: Tree, data: st.DataObject) -> None:
    size = len(tree.token_ids)
    predictions = data.draw(st.lists(st.integers(0, 6), min_size=size, max_size=size))
    assert verify_greedy(tree, predictions) == naive_verify(tree, predictions)


@settings(deadline=None)
@given(trees(), st.data(), st.randoms(use_true_random=False))
def test_the_order_of_siblings_does_not_matter(
    tree: Tree, data: st.DataObject, random: Any
) -> None:
    size = len(tree.token_ids)
    predictions = data.draw(st.lists(st.integers(0, 6), min_size=size, max_size=size))
    shuffled, order = shuffle_siblings(tree, random)
    check(shuffled)
    accepted, bonus = verify_greedy(shuffled, [predictions[old] for old in order])
    assert ([order[node] for node in accepted], bonus) == verify_greedy(tree, predictions)


GOOD = Tree((9, 1, 2, 3, 4), (-1, 0, 0, 1, 3))


@pytest.mark.parametrize(
    ("tree", "limits", "field", "says"),
    [
        (Tree((), ()), {"root_token_id": 9}, "tree.token_ids", "empty"),
        (replace(GOOD, parents=(-1, 0, 0, 1)), {}, "tree.parents", "must have 5"),
        (replace(GOOD, parents=(-1, 0, 0, 1, 3, 0)), {}, "tree.parents", "must have 5"),
        (replace(GOOD, confidences=(1.0, 0.5)), {}, "tree.confidences", "none or 5"),
        (replace(GOOD, parents=(0, 0, 0, 1, 3)), {}, "tree.parents[0]", "must be -1"),
        (replace(GOOD, parents=(-2, 0, 0, 1, 3)), {}, "tree.parents[0]", "must be -1"),
        (replace(GOOD, parents=(-1, 0, -1, 1, 3)), {}, "tree.parents[2]", "only node 0"),
        (replace(GOOD, parents=(-1, 0, -2, 1, 3)), {}, "tree.parents[2]", "0..1"),
        (replace(GOOD, parents=(-1, 0, 0, 3, 3)), {}, "tree.parents[3]", "0..2"),
        (replace(GOOD, parents=(-1, 0, 0, 4, 3)), {}, "tree.parents[3]", "0..2"),
        (replace(GOOD, parents=(-1, 0, 0, 2**31 - 1, 3)), {}, "tree.parents[3]", "0..2"),
        (replace(GOOD, token_ids=(9, 1, 50, 3, 4)), {}, "tree.token_ids[2]", "0..49"),
        (replace(GOOD, token_ids=(9, 1, 2**31, 3, 4)), {}, "tree.token_ids[2]", "0..49"),
        (replace(GOOD, token_ids=(9, 1, -1, 3, 4)), {}, "tree.token_ids[2]", "0..49"),
        (replace(GOOD, token_ids=(9, 1, 1, 3, 4)), {}, "tree.token_ids[2]", "siblings"),
        (GOOD, {"root_token_id": 8}, "tree.token_ids[0]", "last committed token 8"),
        (GOOD, {"max_nodes": 3}, "tree.token_ids", "at most 4"),
        (GOOD, {"max_nodes": 0}, "tree.token_ids", "at most 1"),
        (GOOD, {"max_depth": 2}, "tree.parents[4]", "at most 2"),
        (GOOD, {"max_depth": 2, "field": "trees[4].tree"}, "trees[4].tree.parents[4]", "depth 3"),
    ],
)
def test_malformed_trees_are_rejected(
    tree: Tree, limits: dict[str, Any], field: str, says: str
) -> None:
    with pytest.raises(InvalidTree) as caught:
        validate(tree, **{**LIMITS, "root_token_id": 9, **limits})
    (violation,) = caught.value.fields
    assert violation.field == field
    assert says in violation.description
    assert caught.value.reason == "INVALID_TREE"


def test_the_same_token_under_different_parents_is_valid() -> None:
    check(Tree((9, 1, 1, 1), (-1, 0, 1, 2)))


class Untouchable(list[int]):
    """Has a length and nothing else: reading an entry is a failure."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: Any) -> Any:
        raise AssertionError("an oversized tree was walked")

    def __iter__(self) -> Any:
        raise AssertionError("an oversized tree was walked")


@pytest.mark.parametrize(
    ("sizes", "field"),
    [
        ((10**6, 10**6, 10**6), "tree.token_ids"),
        ((5, 10**6, 5), "tree.parents"),
        ((5, 5, 10**6), "tree.confidences"),
    ],
)
def test_a_million_nodes_are_rejected_without_being_walked(
    sizes: tuple[int, int, int], field: str
) -> None:
    token_ids, parents, confidences = map(Untouchable, sizes)
    tree: Any = Tree(token_ids, parents, confidences)  # type: ignore[arg-type]
    with pytest.raises(InvalidTree) as caught:
        validate(tree, **LIMITS, root_token_id=9)
    assert caught.value.fields[0].field == field


def test_statistics_count_what_the_tree_proposed_and_the_target_accepted() -> None:
    stats = SessionStats(emitted=1)
    stats.record_round(GOOD, accepted=1, emitted=2)
    stats.record_round(Tree.chain([1, 2, 3]), accepted=2, emitted=3)
    stats.record_round(Tree.root_only(1), accepted=0, emitted=1)
    assert stats == SessionStats(
        rounds=2,
        plain_steps=1,
        drafted=6,
        accepted=3,
        drafted_by_depth=[2, 2, 1],
        accepted_by_depth=[2, 1],
        emitted=7,
    )
    assert stats.acceptance_rate == 0.5
    assert stats.mean_accepted_length == 1.5


def test_rates_without_rounds_are_none() -> None:
    assert SessionStats(plain_steps=3).acceptance_rate is None
    assert SessionStats(plain_steps=3).mean_accepted_length is None

"""The index, the tree of its matches, and that nothing is drafted when nothing is likely."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draft_server.drafters.ngram import MAX_INDEXED, MAX_MATCHES, NgramDrafter
from forerun.tree import Budget, Tree, validate

BUDGET = Budget(8, 8)


def draft(tokens: list[int], budget: Budget = BUDGET, **settings: float) -> Tree:
    drafter = NgramDrafter(**settings)  # type: ignore[arg-type]
    return drafter.draft([(drafter.open(tokens), budget)])[0]


def paths(tree: Tree) -> set[tuple[int, ...]]:
    return {
        tuple(tree.token_ids[i] for i in tree.path(node)) for node in range(len(tree.token_ids))
    }


def test_repeats_what_followed_before() -> None:
    tree = draft([1, 2, 3, 4, 5, 6, 1, 2, 3])
    assert tree.token_ids == (3, 4, 5, 6, 1, 2, 3)
    assert tree.parents == (-1, 0, 1, 2, 3, 4, 5)


def test_drafts_nothing_without_a_match_of_the_minimum_length() -> None:
    assert draft([1, 2, 3, 4, 9, 3], min_match=2).num_nodes == 0
    assert draft([1, 2, 3, 4, 9, 3]).num_nodes > 0
    assert draft([7]).num_nodes == 0


def test_one_of_many_continuations_is_not_likely_enough() -> None:
    tokens = [token for other in range(30) for token in (1, 2, 100 + other)] + [1, 2]
    assert draft(tokens, min_probability=0.1).num_nodes == 0
    assert draft(tokens, min_probability=0.001).num_nodes == BUDGET.nodes


def test_merges_matches_into_a_tree_the_longer_match_first() -> None:
    tokens = [5, 1, 2, 3, 8, 9, 1, 2, 7, 0, 5, 1, 2]
    tree = draft(tokens, Budget(24, 4))
    assert {(3,), (7,)} <= paths(tree)
    assert tree.token_ids[1] == 3, "5 1 2 matched three tokens, 9 1 2 only two"
    assert tree.confidences is not None and tree.confidences[0] == 1.0


def test_the_more_frequent_continuation_comes_first() -> None:
    tokens = [1, 2, 7, 1, 2, 8, 1, 2, 7, 4, 1, 2]
    assert draft(tokens).token_ids[1] == 7


def test_index_grows_with_what_is_committed() -> None:
    drafter = NgramDrafter()
    state = drafter.open([1, 2, 3])
    assert drafter.draft([(state, BUDGET)])[0].num_nodes == 0
    drafter.advance(state, [4, 1, 2])
    assert drafter.draft([(state, BUDGET)])[0].token_ids == (2, 3, 4, 1, 2)


def test_a_long_prompt_is_indexed_in_pieces() -> None:
    drafter = NgramDrafter()
    state = drafter.open([1, 2, 3, *range(10, 10 + MAX_INDEXED), 1, 2])
    assert drafter.draft([(state, BUDGET)])[0].num_nodes == 0
    assert state.fallback == "catch_up"
    assert drafter.draft([(state, BUDGET)])[0].token_ids[:2] == (2, 3)
    assert state.fallback == ""


def test_refuses_settings_without_meaning() -> None:
    with pytest.raises(ValueError, match="min_match is 0"):
        NgramDrafter(min_match=0)
    with pytest.raises(ValueError, match="min_probability is 0"):
        NgramDrafter(min_probability=0)


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=80),
    st.integers(0, 12),
    st.integers(0, 6),
)
def test_trees_are_valid_and_come_from_the_tokens(
    tokens: list[int], nodes: int, depth: int
) -> None:
    tree = draft(tokens, Budget(nodes, depth))
    validate(tree, vocab_size=4, max_nodes=nodes, max_depth=depth, root_token_id=tokens[-1])
    text = bytes(tokens)
    for path in paths(tree):
        assert bytes([tokens[-1], *path]) in text or not path
    assert all(0 < p <= 1 for p in tree.confidences or ())


@given(st.lists(st.integers(0, 2), min_size=2, max_size=60), st.integers(1, 5))
def test_pieces_make_the_same_index_as_the_whole(tokens: list[int], size: int) -> None:
    drafter = NgramDrafter()
    state = drafter.open(tokens[:1])
    for start in range(1, len(tokens), size):
        drafter.advance(state, tokens[start : start + size])
        tree = drafter.draft([(state, BUDGET)])[0]
    assert tree == draft(tokens)


def test_work_is_bounded_where_everything_matches() -> None:
    drafter = NgramDrafter()
    state = drafter.open([1] * 3000)
    tree = drafter.draft([(state, Budget(64, 64))])[0]
    assert tree.max_depth == min(64, MAX_MATCHES)
    coin = random.Random(0)
    state = drafter.open([coin.randrange(2) for _ in range(3000)])
    assert 0 < drafter.draft([(state, Budget(64, 64))])[0].num_nodes <= 64

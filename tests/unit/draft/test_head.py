"""The drafter's rows follow what was committed, however hidden states and rounds arrive."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from draft_server.drafters.head import HeadDrafter, HeadState
from forerun.engine.draft_head import DraftHead
from forerun.tree import Budget, Tree, validate
from tests.fixtures.eagle3 import hidden_states, load_head, write_head
from tests.fixtures.tiny import NUM_TOKENS

PROMPT = list(range(20, 44))
BUDGET = Budget(6, 4)


@pytest.fixture
def head(tmp_path: Path) -> DraftHead:
    return load_head(write_head(tmp_path))


def opened(drafter: HeadDrafter, committed: list[int]) -> HeadState:
    """A fresh session that knows all that can be known of these tokens."""
    state = drafter.open(committed)
    drafter.feed(state, 0, hidden_states(0, len(committed) - 1))
    return state


def test_it_drafts_as_a_fresh_one_after_any_rounds(head: DraftHead) -> None:
    drafter = HeadDrafter("eagle3", head, 0.0)
    state = opened(drafter, PROMPT)
    random = np.random.default_rng(0)
    for _ in range(30):
        (tree,) = drafter.draft([(state, BUDGET)])
        fresh = opened(drafter, list(state.committed))
        assert drafter.draft([(fresh, BUDGET)]) == [tree]
        drafter.close(fresh)
        assert tree.num_nodes == BUDGET.nodes
        assert tree.max_depth <= BUDGET.depth
        validate(
            tree,
            vocab_size=NUM_TOKENS,
            max_nodes=BUDGET.nodes,
            max_depth=BUDGET.depth,
            root_token_id=state.committed[-1],
        )
        # A verdict: hidden states of the root and what was accepted, then the tokens.
        block = random.integers(0, 256, size=1 + random.integers(0, 4)).tolist()
        drafter.feed(
            state, len(state.committed) - 1, hidden_states(len(state.committed) - 1, len(block))
        )
        drafter.advance(state, block)
        assert state.cached == len(state.committed) - 1 - len(block)
    drafter.close(state)
    assert head.pages_free == head.info.pages_total


def test_a_prompt_is_cached_ahead_as_its_hidden_states_come(head: DraftHead) -> None:
    drafter = HeadDrafter("eagle3", head, 0.0)
    prompt = [7 * i % 256 for i in range(300)]
    state = drafter.open(prompt)
    assert not drafter.warm()
    drafter.feed(state, 0, hidden_states(0, 128))
    assert drafter.warm()
    assert state.cached == 128
    drafter.feed(state, 128, hidden_states(128, 172))
    assert drafter.warm()
    # The last row waits for the first token of the output.
    assert state.cached == 299
    drafter.advance(state, [5])
    (tree,) = drafter.draft([(state, BUDGET)])
    fresh = opened(drafter, [*prompt, 5])
    assert drafter.draft([(fresh, BUDGET)]) == [tree]
    assert tree.num_nodes == BUDGET.nodes


def test_beside_others_a_prompt_is_cached_once_a_tree_is_wanted(head: DraftHead) -> None:
    drafter = HeadDrafter("eagle3", head, 0.0)
    prompt = [7 * i % 256 for i in range(120)]
    states = [opened(drafter, prompt) for _ in range(3)]
    assert not drafter.warm()
    (tree,) = drafter.draft([(states[0], BUDGET)])
    assert [state.cached for state in states] == [119, 0, 0] and tree.num_nodes == BUDGET.nodes
    drafter.feed(states[0], 119, hidden_states(119, 70))
    drafter.advance(states[0], list(range(70)))
    assert drafter.warm() and states[0].cached == 189, "it was asked before"
    drafter.close(states[2])
    assert drafter.warm() and states[1].cached == 119, "two are few"


def test_hidden_states_do_not_pile_up_beside_others(head: DraftHead) -> None:
    drafter = HeadDrafter("eagle3", head, 0.0)
    states = [drafter.open([7 * i % 256 for i in range(900)]) for _ in range(3)]
    drafter.feed(states[0], 0, hidden_states(0, 600))
    assert drafter.warm() and states[0].cached > 0


def test_without_hidden_states_it_proposes_nothing(head: DraftHead) -> None:
    drafter = HeadDrafter("eagle3", head, 0.02)
    state = drafter.open(PROMPT)
    drafter.feed(state, 0, hidden_states(0, 5))
    assert drafter.draft([(state, BUDGET)]) == [Tree.root_only(PROMPT[-1])]
    assert state.fallback == "catch_up"


def test_a_session_that_was_opened_again_sends_what_is_known_already(head: DraftHead) -> None:
    drafter = HeadDrafter("eagle3", head, 0.0)
    state, twice = opened(drafter, PROMPT), opened(drafter, PROMPT)
    drafter.feed(twice, 0, hidden_states(0, len(PROMPT) - 1))
    drafter.feed(twice, 3, hidden_states(3, 4))
    assert drafter.draft([(state, BUDGET)]) == drafter.draft([(twice, BUDGET)])
    with pytest.raises(ValueError, match="begin at position 99; expected 23"):
        drafter.feed(state, 99, hidden_states(99, 1))
    with pytest.raises(ValueError, match="expected rows of 192"):
        drafter.feed(state, 23, np.zeros((1, 64), np.uint16))


def test_limits_of_context_and_cache(tmp_path: Path) -> None:
    folder = write_head(tmp_path)
    short = HeadDrafter("eagle3", load_head(folder, max_context=25), 0.0)
    state = opened(short, PROMPT)
    (tree,) = short.draft([(state, BUDGET)])
    assert 1 <= tree.max_depth <= 3, "positions 23 and 24 are left; the deepest node takes none"
    short.feed(state, 23, hidden_states(23, 4))
    short.advance(state, [1, 2, 3, 4])
    assert short.draft([(state, BUDGET)]) == [Tree.root_only(4)]
    assert state.fallback == "draft_context"

    small = HeadDrafter("eagle3", load_head(folder, kv_tokens=32, page_size=16), 0.0)
    first, second = opened(small, PROMPT), opened(small, PROMPT)
    trees = small.draft([(first, BUDGET), (second, BUDGET)])
    assert sorted(tree.num_nodes for tree in trees) == [0, BUDGET.nodes]
    assert sorted([first.fallback, second.fallback]) == ["", "draft_kv_full"]

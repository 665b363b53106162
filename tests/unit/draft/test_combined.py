"""The likeliest nodes of two trees, and that each method goes on as if it were alone."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from draft_server.drafters.calibrated import CalibratedDrafter
from draft_server.drafters.combined import CombinedDrafter, merge
from draft_server.drafters.head import HeadDrafter, HeadState
from draft_server.drafters.ngram import NgramDrafter
from forerun.engine.draft_head import DraftHead
from forerun.tree import Budget, Tree, validate
from tests.fixtures.eagle3 import hidden_states, load_head, write_head
from tests.fixtures.tiny import NUM_TOKENS

BUDGET = Budget(6, 4)
TokenPath = tuple[int, ...]


def products(tree: Tree) -> dict[TokenPath, float]:
    """The probability of the path to each node below the root."""
    confidences = tree.confidences or (1.0,) * len(tree.token_ids)
    found = {}
    for node in range(1, len(tree.token_ids)):
        path = tree.path(node)
        product = float(np.prod([confidences[i] for i in path]))
        found[tuple(tree.token_ids[i] for i in path)] = product
    return found


@st.composite
def trees(draw: st.DrawFn) -> Tree:
    """Valid trees over few tokens, so that two of them have much in common."""
    token_ids, parents, confidences = [9], [-1], [1.0]
    taken: set[tuple[int, int]] = set()
    for _ in range(draw(st.integers(0, 12))):
        parent = draw(st.integers(0, len(parents) - 1))
        token = draw(st.integers(0, 3))
        if (parent, token) not in taken:
            taken.add((parent, token))
            token_ids.append(token)
            parents.append(parent)
            confidences.append(draw(st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0])))
    return Tree(tuple(token_ids), tuple(parents), tuple(confidences))


@given(trees(), trees(), st.integers(0, 20))
def test_the_likeliest_nodes_of_both(one: Tree, other: Tree, nodes: int) -> None:
    merged = merge([one, other], nodes)
    validate(merged, vocab_size=10, max_nodes=20, max_depth=20, root_token_id=9)
    likely = products(one)
    for path, product in products(other).items():
        likely[path] = max(likely.get(path, 0.0), product)
    likely = {path: product for path, product in likely.items() if product > 0}
    taken = products(merged)
    assert len(taken) == min(nodes, len(likely))
    assert all(taken[path] == pytest.approx(likely[path]) for path in taken)
    left = [product for path, product in likely.items() if path not in taken]
    assert not taken or not left or min(taken.values()) >= max(left) - 1e-9
    order = list(products(merged).values())
    assert all(a >= b - 1e-9 for a, b in itertools.pairwise(order))


@pytest.fixture
def head(tmp_path: Path) -> DraftHead:
    return load_head(write_head(tmp_path))


def combined(head: DraftHead) -> CombinedDrafter[HeadState]:
    return CombinedDrafter(
        CalibratedDrafter(NgramDrafter()), CalibratedDrafter(HeadDrafter("eagle3", head, 0.0))
    )


def test_what_is_repeated_comes_from_the_text_and_the_rest_from_the_head(head: DraftHead) -> None:
    drafter = combined(head)
    assert drafter.info.name == "ngram+eagle3"
    assert drafter.info.hidden_taps == head.info.taps
    repeated = [*range(30, 50), 7, 30, 31, 32, 33]
    state = drafter.open(repeated)
    drafter.feed(state, 0, hidden_states(0, len(repeated) - 1))
    (tree,) = drafter.draft([(state, BUDGET)])
    assert (34, 35, 36) in products(tree), "a long match is surer than a head of random weights"
    fresh = list(range(30, 60))
    other = drafter.open(fresh)
    drafter.feed(other, 0, hidden_states(0, len(fresh) - 1))
    (tree,) = drafter.draft([(other, BUDGET)])
    alone = HeadDrafter("eagle3", head, 0.0)
    of_head = alone.open(fresh)
    alone.feed(of_head, 0, hidden_states(0, len(fresh) - 1))
    assert products(tree) == pytest.approx(products(alone.draft([(of_head, BUDGET)])[0]))
    for opened in (state, other):
        drafter.close(opened)
    alone.close(of_head)
    assert head.pages_free == head.info.pages_total


def test_the_head_is_not_asked_where_the_text_is_sure(
    head: DraftHead, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    draft = HeadDrafter.draft

    def spy(self: HeadDrafter, batch: Sequence[Any], seconds: float = math.inf) -> list[Tree]:
        asked.append(len(batch))
        return draft(self, batch, seconds)

    monkeypatch.setattr(HeadDrafter, "draft", spy)
    drafter = combined(head)
    sure, unsure = drafter.open([*range(30, 50), *range(30, 45)]), drafter.open(list(range(60, 80)))
    for state in (sure, unsure):
        drafter.feed(state, 0, hidden_states(0, len(state.committed) - 1))
    both = drafter.draft([(sure, BUDGET), (unsure, BUDGET)])
    assert asked == [1]
    assert both[0].token_ids[1:4] == (45, 46, 47)
    assert both[1].num_nodes == BUDGET.nodes
    drafter.draft([(sure, BUDGET)])
    assert asked == [1], "nothing to ask, no call"


def test_it_drafts_as_a_fresh_one_after_any_rounds(head: DraftHead) -> None:
    drafter = combined(head)
    prompt = list(range(20, 44))
    state = drafter.open(prompt)
    drafter.feed(state, 0, hidden_states(0, len(prompt) - 1))
    random = np.random.default_rng(0)
    for _ in range(20):
        (tree,) = drafter.draft([(state, BUDGET)])
        committed = list(state.committed)
        fresh = drafter.open(committed)
        drafter.feed(fresh, 0, hidden_states(0, len(committed) - 1))
        assert drafter.draft([(fresh, BUDGET)]) == [tree]
        drafter.close(fresh)
        validate(
            tree,
            vocab_size=NUM_TOKENS,
            max_nodes=BUDGET.nodes,
            max_depth=BUDGET.depth,
            root_token_id=committed[-1],
        )
        block = random.integers(20, 30, size=1 + random.integers(0, 4)).tolist()
        drafter.feed(state, len(committed) - 1, hidden_states(len(committed) - 1, len(block)))
        drafter.advance(state, block)


def test_the_text_goes_on_where_the_head_cannot(head: DraftHead) -> None:
    drafter = combined(head)
    state = drafter.open([1, 2, 3, 4, 5, 1, 2, 3])
    (tree,) = drafter.draft([(state, BUDGET)])
    assert tree.token_ids[:3] == (3, 4, 5), "without a single hidden state"
    nothing = drafter.open([1, 2, 3])
    assert drafter.draft([(nothing, BUDGET)]) == [Tree.root_only(3)]
    assert nothing.fallback == "", "what does not come is not waited for"

"""The draft model's cache equals that of a fresh draft, whatever was accepted (invariant 5)."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from draft_server.drafters.standalone import StandaloneDrafter, StandaloneState
from forerun.engine.interface import Sequence as Cache
from forerun.tree import Budget, Tree
from tests.fixtures.scripted_target import NextToken, ScriptedTarget, decode_plainly, hash_next

VOCAB = 1000
PROMPT = [3, 1, 4, 1, 5]
NEXT = hash_next(VOCAB)


def drafter_of(
    next_token: NextToken = NEXT, vocab_size: int = VOCAB, chunk: int = 256, **limits: int
) -> tuple[StandaloneDrafter, ScriptedTarget]:
    engine = ScriptedTarget(
        next_token, **{"pages_total": 400, "max_context": 1200, "max_rows": 512} | limits
    )
    return StandaloneDrafter(engine, vocab_size, chunk), engine


def draft(drafter: StandaloneDrafter, state: StandaloneState, budget: Budget) -> Tree:
    return drafter.draft([(state, budget)])[0]


def length(state: StandaloneState) -> int:
    return state.sequence.length if state.sequence is not None else 0


def target_says(committed: Sequence[int], count: int) -> list[int]:
    return decode_plainly(NEXT, committed, count)


def test_draft_equals_target_every_proposal_is_accepted_for_200_rounds() -> None:
    drafter, _ = drafter_of()
    state = drafter.open(PROMPT)
    for round_ in range(200):
        size = 1 + round_ % 5
        tree = draft(drafter, state, Budget(size, size))
        assert list(tree.token_ids[1:]) == target_says(state.committed, size)
        # The root and all proposals but the last are cached.
        assert length(state) == len(state.committed) + size - 1
        committed = len(state.committed)
        drafter.advance(state, target_says(state.committed, size + 1))
        # The last proposal has no KV yet, and the new root never has.
        assert length(state) == committed + size - 1 == len(state.committed) - 2


def test_after_any_number_of_accepted_nodes_it_drafts_as_a_fresh_one() -> None:
    drafter, engine = drafter_of()
    state = drafter.open(PROMPT)
    size = 4
    for round_ in range(60):
        tree = draft(drafter, state, Budget(size, size))
        accepted = round_ % (size + 1)
        bonus = random.Random(round_).randrange(VOCAB)
        committed = len(state.committed)
        drafter.advance(state, [*tree.token_ids[1 : accepted + 1], bonus])
        assert length(state) == committed + min(accepted, size - 1)
        fresh, _ = drafter_of()
        expected = draft(fresh, fresh.open(state.committed), Budget(size, size))
        fed = len(engine.forwards)
        assert draft(drafter, state, Budget(size, size)) == expected
        # One row for the root, two after full acceptance; then one a depth.
        rows = [len(forward[0].token_ids) for forward in engine.forwards[fed:]]
        assert rows == [2 if accepted == size else 1] + [1] * (size - 1)


def test_plain_steps_are_caught_up_in_one_forward() -> None:
    drafter, engine = drafter_of()
    state = drafter.open(PROMPT)
    draft(drafter, state, Budget(4, 4))
    for token_id in range(20):
        drafter.advance(state, [token_id])
    fed = len(engine.forwards)
    tree = draft(drafter, state, Budget(2, 2))
    assert list(tree.token_ids[1:]) == target_says(state.committed, 2)
    assert [len(forward[0].token_ids) for forward in engine.forwards[fed:]] == [20, 1]


def test_a_batch_takes_one_forward_a_depth() -> None:
    drafter, engine = drafter_of()
    states = [drafter.open([*PROMPT, extra]) for extra in range(3)]
    budgets = [Budget(4, 4), Budget(2, 9), Budget(9, 1)]
    trees = drafter.draft(list(zip(states, budgets, strict=True)))
    assert [tree.num_nodes for tree in trees] == [4, 2, 1]
    assert [len(forward) for forward in engine.forwards] == [3, 2, 1, 1]
    for state, tree in zip(states, trees, strict=True):
        assert list(tree.token_ids[1:]) == target_says(state.committed, tree.num_nodes)


def test_long_prompts_are_prefilled_in_pieces_and_hold_up_no_other() -> None:
    drafter, engine = drafter_of(chunk=16)
    long, short = drafter.open(list(range(50))), drafter.open(PROMPT)
    trees = drafter.draft([(long, Budget(3, 3)), (short, Budget(3, 3))])
    assert (trees[0].num_nodes, long.fallback) == (0, "catch_up")
    assert trees[1].num_nodes == 3
    while (tree := draft(drafter, long, Budget(3, 3))).num_nodes == 0:
        assert long.fallback == "catch_up"
    assert list(tree.token_ids[1:]) == target_says(list(range(50)), 3)
    assert max(sum(len(rows.token_ids) for rows in forward) for forward in engine.forwards) <= 16


def test_idle_time_prefills_prompts() -> None:
    drafter, engine = drafter_of(chunk=16)
    state = drafter.open(list(range(50)))
    while drafter.warm():
        pass
    assert length(state) == 49
    fed = len(engine.forwards)
    draft(drafter, state, Budget(1, 1))
    assert [len(forward[0].token_ids) for forward in engine.forwards[fed:]] == [1]


def test_beyond_its_own_context_it_proposes_nothing() -> None:
    drafter, engine = drafter_of(max_context=20)
    state, other = drafter.open(list(range(17))), drafter.open(PROMPT)
    # 17 tokens and 4 proposals: the last proposal is never fed, so 20 slots do.
    assert draft(drafter, state, Budget(8, 8)).num_nodes == 4
    drafter.advance(state, [1, 2, 3])
    assert draft(drafter, state, Budget(8, 8)).num_nodes == 1
    drafter.advance(state, [4])
    held = len(other.committed)
    trees = drafter.draft([(state, Budget(8, 8)), (other, Budget(2, 2))])
    assert (trees[0].num_nodes, state.fallback) == (0, "draft_context")
    assert trees[1].num_nodes == 2 and held == len(PROMPT)
    assert not drafter.warm()
    drafter.close(other)
    assert engine.pages_free == engine.info.pages_total


@pytest.mark.parametrize("shared", [250, 1])
def test_never_proposes_an_id_that_the_target_lacks(shared: int) -> None:
    drafter, _ = drafter_of(hash_next(272), vocab_size=shared)
    state = drafter.open(PROMPT)
    for _ in range(50):
        tree = draft(drafter, state, Budget(6, 6))
        assert all(token_id < shared for token_id in tree.token_ids[1:])
        drafter.advance(state, [0])


def test_without_room_for_its_kv_it_proposes_nothing_and_recovers() -> None:
    drafter, engine = drafter_of(pages_total=3, page_size=4)
    first, second = drafter.open(list(range(9))), drafter.open(list(range(9)))
    assert draft(drafter, first, Budget(2, 2)).num_nodes == 2
    assert draft(drafter, second, Budget(2, 2)).num_nodes == 0
    assert second.fallback == "draft_kv_full"
    drafter.close(first)
    drafter.close(first)
    assert draft(drafter, second, Budget(9, 9)).num_nodes == 4, "as far as the pages go"
    assert second.fallback == ""
    drafter.close(second)
    assert engine.pages_free == engine.info.pages_total


@pytest.mark.parametrize("warm", [False, True])
def test_a_prompt_that_is_known_is_not_computed_again(warm: bool) -> None:
    drafter, engine = drafter_of(page_size=4, cache_pages=400, chunk=8)
    prompt = list(range(30))

    def rows_of(prompt: list[int]) -> int:
        engine.forwards.clear()
        state = drafter.open(prompt)
        while warm and drafter.warm():
            pass
        while not (tree := draft(drafter, state, Budget(4, 4))).num_nodes:
            assert state.fallback == "catch_up"
        assert list(tree.token_ids[1:]) == target_says(prompt, 4)
        drafter.advance(state, [*tree.token_ids[1:3], 7])
        assert list(draft(drafter, state, Budget(4, 4)).token_ids[1:]) == target_says(
            state.committed, 4
        )
        drafter.close(state)
        assert engine.pages_free + engine.pages_cached == engine.info.pages_total
        return sum(len(rows.token_ids) for forward in engine.forwards for rows in forward)

    first = rows_of(prompt)
    assert rows_of(prompt) == first - 28
    assert rows_of([*prompt[:10], *prompt]) == first + 10 - 8


def test_goes_on_as_a_fresh_one_after_a_failed_forward() -> None:
    drafter, engine = drafter_of()
    state = drafter.open(PROMPT)
    draft(drafter, state, Budget(4, 4))
    drafter.advance(state, [9])
    engine.fail_with = RuntimeError("the engine broke")
    with pytest.raises(RuntimeError):
        draft(drafter, state, Budget(4, 4))
    engine.fail_with = None
    assert list(draft(drafter, state, Budget(4, 4)).token_ids[1:]) == target_says([*PROMPT, 9], 4)


def test_keeps_what_is_right_where_the_verifier_cut_the_tree(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drafter, engine = drafter_of()
    state = drafter.open(PROMPT)
    tree = draft(drafter, state, Budget(4, 4))
    dropped: list[int] = []
    truncate = engine.truncate

    def spy(sequence: Cache, length: int) -> None:
        dropped.append(sequence.length - length)
        truncate(sequence, length)

    monkeypatch.setattr(engine, "truncate", spy)
    # One node accepted, and the bonus token happens to be the second proposal.
    drafter.advance(state, tree.token_ids[1:3])
    assert dropped == [2] and length(state) == len(state.committed) - 1


def test_a_chain_ends_where_its_time_does() -> None:
    """Without time for more, one token is proposed; the next call goes on from there."""
    drafter, _ = drafter_of()
    state = drafter.open(PROMPT)
    hurried = drafter.draft([(state, Budget(8, 8))], seconds=0.0)[0]
    assert list(hurried.token_ids[1:]) == target_says(PROMPT, 1)
    assert list(draft(drafter, state, Budget(8, 8)).token_ids[1:]) == target_says(PROMPT, 8)

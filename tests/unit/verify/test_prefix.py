"""Prompts that begin alike share pages: fewer rows are computed, and no token is another one."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.fixtures.scripted_target import ScriptedTarget, decode_plainly, hash_next, hidden_state
from tests.fixtures.scripted_trees import chain, random_tree
from tests.fixtures.stepping import Seen, Stepping

VOCAB = 1000
NEXT = hash_next(VOCAB)
PAGE = 4


def cached_pool(pages: int = 64, cache_pages: int | None = None, **settings: Any) -> Stepping:
    target = ScriptedTarget(
        NEXT, page_size=PAGE, pages_total=pages, max_context=600, max_rows=128,
        cache_pages=pages if cache_pages is None else cache_pages,
    )  # fmt: skip
    return Stepping(target, **({"prefill_chunk": 64} | settings))


def run(
    stepping: Stepping, number: int, prompt: list[int], max_tokens: int = 6, **fields: Any
) -> tuple[Seen, int]:
    """A session from its opening to its end, alone, and the prompt rows that it took."""
    before = prompt_rows(stepping)
    seen = stepping.open(number, prompt, max_tokens, **fields)
    stepping.run(lambda seen: chain(NEXT, seen.committed, 2, 1, VOCAB))
    assert seen.tokens == decode_plainly(NEXT, prompt, max_tokens)
    assert_nothing_held(stepping)
    return seen, prompt_rows(stepping) - before


def prompt_rows(stepping: Stepping) -> int:
    """Rows of prompts that were computed."""
    return int(stepping.metrics.value("rows_total", kind="prefill"))


def assert_nothing_held(stepping: Stepping) -> None:
    target = stepping.target
    assert target.pages_free + target.pages_cached == target.info.pages_total
    assert stepping.metrics.value("pages", state="held") == 0
    assert stepping.metrics.value("pages", state="cached") == target.pages_cached
    assert stepping.metrics.value("pages", state="free") == target.pages_free


def test_the_same_prompt_again_computes_its_tail_alone() -> None:
    stepping = cached_pool(pages=300)
    prompt = [n % VOCAB for n in range(511)]
    first, rows = run(stepping, 1, prompt, drafting=True)
    again, tail = run(stepping, 2, prompt, drafting=True)
    assert (rows, tail) == (511, 511 % PAGE)
    assert again.tokens == first.tokens
    assert [v.accepted_nodes for v in again.verdicts] == [v.accepted_nodes for v in first.verdicts]
    assert stepping.metrics.value("prefix_hits_total") == 1
    assert stepping.metrics.value("prefix_hit_tokens_total") == 508


def test_a_page_that_ends_with_the_prompt_is_computed_again_for_what_comes_next() -> None:
    stepping = cached_pool()
    prompt = list(range(4 * PAGE))
    run(stepping, 1, prompt)
    assert run(stepping, 2, prompt)[1] == PAGE
    assert run(stepping, 3, [*prompt, 5])[1] == 1, "its last page is full and known"


def test_a_prompt_that_goes_on_with_the_answer_finds_the_answer() -> None:
    stepping = cached_pool()
    first, _ = run(stepping, 1, list(range(10)), 20, drafting=True)
    assert run(stepping, 2, [*first.committed, 1, 2])[1] <= 2 + 1 + PAGE


def test_prompts_that_begin_alike_share_whole_pages() -> None:
    stepping = cached_pool()
    common = list(range(18))
    run(stepping, 1, [*common, 100, 101, 102])
    _, rows = run(stepping, 2, [*common, 200, 201, 202])
    assert rows == 21 - 16
    assert run(stepping, 3, [7, *common])[1] == 19


def test_prompts_that_come_at_once_compute_what_they_share_once() -> None:
    stepping = cached_pool(prefill_chunk=8)
    common = list(range(40))
    for number in range(1, 5):
        stepping.open(number, [*common, number], 8)
    while not all(seen.opened for seen in stepping.seen.values()):
        stepping.now_ns += 1
        stepping.step()
    assert prompt_rows(stepping) == 41 + 3
    opened = stepping.seen[4].opened[0].kv
    assert opened.pages_held == 11
    stepping.run()
    for seen in stepping.seen.values():
        assert seen.tokens == decode_plainly(NEXT, seen.prompt, 8)
    assert_nothing_held(stepping)


def test_what_two_sessions_computed_in_one_step_is_kept_once() -> None:
    stepping = cached_pool(prefill_chunk=64)
    for number in (1, 2):
        stepping.open(number, list(range(20)), 30)
    stepping.step()
    assert prompt_rows(stepping) == 40
    stepping.step()
    assert stepping.metrics.value("pages", state="held") == 5 + 2 * 1
    stepping.run()
    assert_nothing_held(stepping)


def test_cached_pages_make_room_before_anybody_waits_or_gives_way() -> None:
    stepping = cached_pool(pages=8)
    for number in range(1, 7):
        run(stepping, number, [number] * 20)
        assert not stepping.metrics.value("preemptions_total")
    assert stepping.metrics.value("prefix_evictions_total") >= 5 * 5 - 8
    held, rows = run(stepping, 7, [6] * 20)
    assert rows == 4
    assert held.opened[0].kv.pages_held + held.opened[0].kv.pages_free + (
        held.opened[0].kv.pages_cached
    ) == 8  # fmt: skip


def test_a_prompt_does_not_evict_the_pages_that_it_is_about_to_take() -> None:
    stepping = cached_pool(pages=6, draft_nodes=0)
    run(stepping, 1, [1] * 16, 3)
    assert stepping.target.pages_cached == 4
    assert run(stepping, 2, [1] * 20, 3)[1] == 4


def test_rejected_drafts_are_never_found() -> None:
    stepping = cached_pool()
    seen = stepping.open(1, [1, 2, 3], 30, drafting=True)
    wrong: list[list[int]] = []

    def draft(seen: Seen) -> Any:
        tree = chain(NEXT, seen.committed, 0, 6, VOCAB)
        wrong.append([*seen.committed, *tree.token_ids[1:]])
        return tree

    stepping.run(draft)
    assert seen.finished[0].stats.accepted == 0 < seen.finished[0].stats.drafted
    for number, tokens in enumerate(wrong, start=2):
        stepping.target.forwards.clear()
        stepping.open(number, tokens, 1)
        stepping.run()
        [[rows]] = stepping.target.forwards
        assert rows.length <= len(tokens) - 6, "no page with a draft in it"
        assert stepping.seen[number].tokens == decode_plainly(NEXT, tokens, 1)


def test_a_session_cancelled_in_mid_prefill_leaves_what_it_had_computed() -> None:
    stepping = cached_pool(prefill_chunk=10)
    prompt = list(range(50))
    stepping.open(1, prompt, 5)
    stepping.step()
    stepping.step()
    stepping.cancel(1)
    stepping.step()
    assert_nothing_held(stepping)
    assert stepping.target.pages_cached == 20 // PAGE
    assert run(stepping, 2, prompt)[1] == 30


def test_hidden_states_of_a_prompt_are_computed_though_its_pages_are_known() -> None:
    stepping = cached_pool(prefill_chunk=8, max_taps=2)
    prompt = list(range(20))
    run(stepping, 1, prompt)
    seen, rows = run(stepping, 2, prompt, 3, hidden_taps=[0, 2])
    assert rows == 20
    data = b"".join(hidden.data for hidden in seen.hidden)
    expected = [hidden_state(token, p, [0, 2], 2) for p, token in enumerate(prompt)]
    assert data == b"".join(state.astype("<u2").tobytes() for state in expected)
    assert run(stepping, 3, prompt)[1] == 4, "and a session without taps takes them"


def test_a_session_that_lost_its_pages_finds_them_again() -> None:
    stepping = cached_pool(pages=8, draft_nodes=0)
    old = stepping.open(1, [1] * 7, 17)
    young = stepping.open(2, [2] * 7, 17)
    stepping.run()
    assert stepping.metrics.value("preemptions_total") >= 1
    assert stepping.metrics.value("prefix_hits_total") >= 1
    for seen in (old, young):
        assert seen.tokens == decode_plainly(NEXT, seen.prompt, 17)
    assert_nothing_held(stepping)


def test_a_limit_of_nothing_turns_it_off() -> None:
    stepping = cached_pool(cache_pages=0)
    for number in (1, 2):
        assert run(stepping, number, list(range(30)))[1] == 30
    assert stepping.target.pages_free == stepping.target.info.pages_total


@pytest.mark.parametrize("page_size", [1, 4, 16])
@pytest.mark.parametrize("cache_pages", [3, 1000])
def test_nothing_is_lost_over_hundreds_of_sessions_that_begin_alike(
    page_size: int, cache_pages: int
) -> None:
    """Random accepts and cancels on a pool that is too small, from few beginnings."""
    rng = random.Random(page_size)
    pages = max(8, 192 // page_size)
    target = ScriptedTarget(
        NEXT, page_size=page_size, pages_total=pages, cache_pages=min(cache_pages, pages)
    )
    stepping = Stepping(target, max_waiting=500, max_sessions=500, row_budget=64)
    cancelled: set[int] = set()
    counts = {}
    for number in range(300):
        beginning = [rng.randrange(3)] * rng.randint(1, 40)
        prompt = [*beginning, *(rng.randrange(3) for _ in range(rng.randint(0, 6)))]
        counts[number] = rng.randint(1, 12)
        stepping.open(number, prompt, counts[number], drafting=rng.random() < 0.8)

    def draft(seen: Seen) -> Any:
        victim = rng.randrange(300)
        if rng.random() < 0.1 and not stepping.seen[victim].ended and len(cancelled) < 60:
            cancelled.add(victim)
            stepping.cancel(victim)
        return random_tree(rng, NEXT, seen.committed, nodes=rng.randint(0, 6), branching=3,
                           right=0.6, vocab_size=VOCAB)  # fmt: skip

    stepping.run(draft)
    assert len(cancelled) > 10
    for number, seen in stepping.seen.items():
        expected = decode_plainly(NEXT, seen.prompt, counts[number])
        if number not in cancelled:
            assert seen.tokens == expected
        assert seen.tokens == expected[: len(seen.tokens)]
    assert stepping.metrics.value("prefix_hit_tokens_total") > 100
    assert target.pages_cached <= cache_pages
    assert_nothing_held(stepping)

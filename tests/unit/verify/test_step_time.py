"""Steps on a clock that says what rows cost: long prompts come in while sessions decode at an even
pace, and neither starves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from forerun.engine.interface import Rows
from forerun.tree import Tree
from tests.fixtures.scripted_target import ScriptedTarget, decode_plainly, hash_next
from tests.fixtures.scripted_trees import chain
from tests.fixtures.stepping import MILLISECOND, Seen, Stepping

VOCAB = 1000
NEXT = hash_next(VOCAB)

Cost = Callable[[Sequence[Rows]], int]


def num_rows(batch: Sequence[Rows]) -> int:
    return sum(len(rows.token_ids) for rows in batch)


def affine(batch: Sequence[Rows]) -> int:
    """10 ms to read the weights and 1 ms a row."""
    return (10 + num_rows(batch)) * MILLISECOND


def roofline(batch: Sequence[Rows]) -> int:
    """12 rows come for free with the reading of the weights."""
    return max(12, num_rows(batch)) * MILLISECOND


def timed(cost: Cost, **settings: Any) -> tuple[Stepping, list[int]]:
    """A scheduler whose clock runs while its target computes, and how long every step took."""
    target = ScriptedTarget(NEXT, page_size=16, pages_total=1000, max_rows=512, max_context=8000)
    stepping = Stepping(target, **({"prefill_chunk": 256, "patience_ms": 5} | settings))
    times: list[int] = []

    def pass_time(batch: Sequence[Rows]) -> None:
        times.append(cost(batch))
        stepping.now_ns += times[-1]

    target.on_forward = pass_time
    return stepping, times


def advance(stepping: Stepping, steps: int) -> None:
    """Steps as soon as there is something to do. Drafts come at once, two nodes of them right."""
    for _ in range(steps):
        stepping.now_ns = max(stepping.now_ns, stepping.scheduler.next_due_ns() or 0)
        stepping.step()
        for number, seen in stepping.seen.items():
            if seen.budget.nodes and not seen.ended and seen.answered < seen.round:
                seen.answered = seen.round
                stepping.send(number, partly_right(seen, 2))


def partly_right(seen: Seen, right: int) -> Tree:
    right = min(right, seen.budget.depth)
    return chain(NEXT, seen.committed, right, seen.budget.depth - right, VOCAB)


def decode(stepping: Stepping, *numbers: int, tokens: int = 1000, **fields: Any) -> None:
    """Opens sessions and steps until they decode, and a while longer."""
    for number in numbers:
        stepping.open(number, [number] * 40, tokens, **fields)
    while not all(len(stepping.seen[number].tokens) > 5 for number in numbers):
        advance(stepping, 1)


def until_opened(stepping: Stepping, *numbers: int, max_steps: int = 2000) -> int:
    for steps in range(max_steps):
        if all(stepping.seen[number].opened for number in numbers):
            return steps
        advance(stepping, 1)
    raise AssertionError("a prompt starves")


@pytest.mark.parametrize("cost", [affine, roofline])
@pytest.mark.parametrize("step_ms", [0, 30])
def test_long_prompts_leave_decoding_an_even_pace(cost: Cost, step_ms: float) -> None:
    stepping, times = timed(cost, step_ms=step_ms)
    decode(stepping, 1, 2, 3, 4)
    plain = times[-1]
    limit = step_ms * MILLISECOND or 3 * plain
    for number in (5, 6):
        stepping.open(number, [number] * 2000, 5)
    before = [len(stepping.seen[number].tokens) for number in (1, 2, 3, 4)]
    begun = len(times)
    steps = until_opened(stepping, 5, 6)
    during = times[begun:]
    assert max(during) <= 1.02 * limit
    assert sum(during) / len(during) > 0.8 * limit, "the time that there is is used"
    after = [len(stepping.seen[number].tokens) for number in (1, 2, 3, 4)]
    assert [b - a for a, b in zip(before, after, strict=True)] == [steps] * 4
    for number, seen in stepping.seen.items():
        stepping.cancel(number)
        assert seen.tokens == decode_plainly(NEXT, seen.prompt, len(seen.tokens))


def test_without_decoding_sessions_a_prompt_has_the_whole_chunk() -> None:
    stepping, times = timed(affine)
    stepping.open(1, [1] * 1000, 1)
    stepping.run()
    assert times == [(10 + rows) * MILLISECOND for rows in (256, 256, 256, 232)]


def test_a_limit_that_cannot_be_met_starves_nobody() -> None:
    stepping, times = timed(affine, step_ms=1)
    decode(stepping, 1, 2)
    stepping.open(3, [3] * 400, 5)
    stepping.open(4, [4] * 30, 5)
    begun = len(times)
    assert until_opened(stepping, 4) <= 8, "a short prompt takes turns with a long one"
    assert until_opened(stepping, 3) <= 50
    assert max(times[begun:]) == (10 + 3 + 8) * MILLISECOND


def test_many_prompts_that_arrive_at_once_do_not_add_up() -> None:
    stepping, times = timed(affine)
    decode(stepping, 1, 2, 3, 4)
    limit = 3 * times[-1]
    for number in range(10, 30):
        stepping.open(number, [number] * 50, 1)
    begun = len(times)
    until_opened(stepping, *range(10, 30))
    assert max(times[begun:]) <= 1.02 * limit


def test_a_machine_that_slows_down_gets_smaller_steps() -> None:
    slowness = [1]
    stepping, times = timed(lambda batch: slowness[0] * affine(batch), step_ms=60)
    decode(stepping, 1, 2)
    stepping.open(3, [3] * 4000, 5)
    for _ in range(20):
        stepping.step()
    assert times[-1] == pytest.approx(60 * MILLISECOND, rel=0.05)
    slowness[0] = 3
    for _ in range(20):
        stepping.step()
    assert times[-1] == pytest.approx(60 * MILLISECOND, rel=0.05)


def test_budgets_fall_with_load_and_come_back() -> None:
    stepping, _ = timed(affine, row_budget=1000)
    decode(stepping, 1, tokens=3000, drafting=True)
    advance(stepping, 40)
    alone = stepping.seen[1].budget.nodes
    decode(stepping, *range(2, 60), tokens=60)
    advance(stepping, 20)
    crowded = stepping.seen[1].budget.nodes
    assert alone >= 3 and crowded == 0
    while not all(stepping.seen[number].ended for number in range(2, 60)):
        advance(stepping, 1)
    advance(stepping, 40)
    assert stepping.seen[1].budget.nodes >= 3
    assert not stepping.seen[1].ended


def test_prompts_that_are_under_way_take_their_share_of_the_row_budget() -> None:
    stepping, _ = timed(affine)
    decode(stepping, 1, tokens=3000, drafting=True)
    advance(stepping, 8)
    alone = stepping.seen[1].budget.nodes
    for number in range(2, 20):
        stepping.open(number, [number] * 900, 5)
    granted = []
    for _ in range(4):
        advance(stepping, 1)
        granted.append(stepping.seen[1].budget.nodes)
    assert alone >= 3 and granted[-1] == 0, "they hold up nineteen who ask for one"
    assert not any(stepping.seen[number].opened for number in range(2, 20))


@pytest.mark.parametrize("right", [0, 1, 4])
def test_drafts_never_take_longer_than_plain_decoding_by_more_than_a_trial(right: int) -> None:
    """Time of the whole job, with drafts that are right for `right` tokens and wrong after them."""

    def run(drafting: bool) -> int:
        stepping, times = timed(affine, row_budget=1000)
        for number in range(1, 9):
            stepping.open(number, [number] * 20, 120, drafting=drafting)

        stepping.run(lambda seen: partly_right(seen, right))
        for seen in stepping.seen.values():
            assert seen.tokens == decode_plainly(NEXT, seen.prompt, 120)
        return sum(times)

    plain, drafted = run(False), run(True)
    assert drafted < 1.1 * plain
    assert right == 0 or drafted < (1.0 if right == 1 else 0.7) * plain

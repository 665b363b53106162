"""Steps on a clock, with trees that take a while to come: sessions are served together where that
pays, and nobody waits for a tree that is late."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Sequence

import pytest

from forerun.engine.interface import Rows
from tests.fixtures.scripted_target import ScriptedTarget, decode_plainly, hash_next
from tests.fixtures.scripted_trees import chain
from tests.fixtures.stepping import MILLISECOND, Seen, Stepping

VOCAB = 1000
NEXT = hash_next(VOCAB)
STEP_MS = 20


class Traffic:
    """Sessions whose trees, of one right node, come `answer_ms(session)` after the verdict (None:
    never), while steps take `STEP_MS` and hardly more for each row. batches: of each step when it
    began, and the number of its sessions that decoded."""

    def __init__(self, answer_ms: Callable[[int], float | None]) -> None:
        target = ScriptedTarget(NEXT, page_size=16, pages_total=500, max_rows=256, max_context=2000)
        self.stepping = Stepping(target, patience_ms=1000)
        self.batches: list[tuple[int, int]] = []
        self._answer_ms = answer_ms
        self._coming: list[tuple[int, int, int]] = []
        self._prompts: set[int] = set()
        target.on_forward = self._pass_time

    def open(self, number: int, tokens: int = 400) -> Seen:
        return self.stepping.open(number, [number] * 8, tokens, drafting=True)

    def run(self, steps: int) -> list[int]:
        """So many more steps: the numbers of sessions that decoded in each."""
        stepping, done = self.stepping, len(self.batches)
        for _ in range(100 * steps):
            if len(self.batches) >= done + steps:
                return [decoding for _, decoding in self.batches[done:]]
            due_ns = stepping.scheduler.next_due_ns()
            assert due_ns is not None, "all sessions are over"
            stepping.now_ns = max(stepping.now_ns, min(due_ns, self._next_arrival_ns()))
            self._arrive()
            stepping.step()
            for number, seen in stepping.seen.items():
                if seen.budget.nodes and not seen.ended and seen.answered < seen.round:
                    seen.answered = seen.round
                    self._answer(number, seen)
        raise AssertionError("the scheduler does not step")

    def longest_gap_ns(self, steps: int) -> int:
        """From the beginning of a step to that of the next, of the last ones."""
        began = [began_ns for began_ns, _ in self.batches[-steps:]]
        return max(after - before for before, after in itertools.pairwise(began))

    def _pass_time(self, batch: Sequence[Rows]) -> None:
        rows = sum(len(rows.token_ids) for rows in batch)
        decoding = sum(rows.predict == "all" for rows in batch)
        self.batches.append((self.stepping.now_ns, decoding))
        self.stepping.now_ns += STEP_MS * MILLISECOND + rows * MILLISECOND // 10

    def _next_arrival_ns(self) -> int:
        return self._coming[0][0] if self._coming else 10**18

    def _answer(self, number: int, seen: Seen) -> None:
        answer_ms = self._answer_ms(number)
        if answer_ms is not None:
            arrival_ns = self.stepping.now_ns + int(answer_ms * MILLISECOND)
            heapq.heappush(self._coming, (arrival_ns, number, seen.round))

    def _arrive(self) -> None:
        """What came by now, each at its own time, as it does while a step runs."""
        now_ns = self.stepping.now_ns
        while self._coming and self._coming[0][0] <= now_ns:
            self.stepping.now_ns, number, round_ = heapq.heappop(self._coming)
            seen = self.stepping.seen[number]
            if seen.round == round_:
                self.stepping.send(number, chain(NEXT, seen.committed, 1, 0, VOCAB))
        self.stepping.now_ns = now_ns


def test_sessions_that_take_turns_come_together() -> None:
    """The second one opens while the first one's step runs, and its trees come during the steps of
    the first one from then on, unless a step is held."""
    traffic = Traffic(lambda number: 3 + number)
    one = traffic.open(1)
    traffic.run(12)
    other = traffic.open(2)
    traffic.run(8)
    assert traffic.run(20) == [2] * 20
    for seen in (one, other):
        assert seen.tokens == decode_plainly(NEXT, seen.prompt, len(seen.tokens))


def test_a_tree_that_takes_longer_than_it_is_worth_is_not_waited_for() -> None:
    """It comes during the next step, and takes part in the one after."""
    traffic = Traffic({1: 1.0, 2: 38.0}.__getitem__)
    traffic.open(1)
    traffic.open(2)
    traffic.run(12)
    assert sorted(traffic.run(6)) == [1, 1, 1, 1, 2, 2]
    assert traffic.longest_gap_ns(6) < (STEP_MS + 3) * MILLISECOND


@pytest.mark.parametrize("lost", [1, 2, 3])
def test_trees_that_never_come_hold_steps_up_for_half_a_step_at_most(lost: int) -> None:
    silent: set[int] = set()
    traffic = Traffic(lambda number: None if number in silent else 2.0)
    for number in range(1, 5):
        traffic.open(number)
    traffic.run(12)
    silent |= set(range(1, lost + 1))
    traffic.run(6)
    assert traffic.run(6) == [4 - lost] * 6
    assert traffic.longest_gap_ns(12) < (1.5 * STEP_MS + 3) * MILLISECOND


def test_prompts_wait_for_trees_of_a_moment() -> None:
    """A prompt's step is long: a session whose tree comes just after its beginning waits for all of
    it, and for the next one as well."""
    traffic = Traffic(lambda number: 2.0)
    traffic.open(1)
    traffic.run(12)
    traffic.stepping.open(2, [2] * 200, 4)
    assert traffic.run(6) == [1] * 6

"""The drafting thread: nothing piles up behind a batch that is overdue, and nothing is missed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator

import numpy as np
import pytest
from numpy.typing import NDArray

from draft_server.drafters.base import DrafterInfo, DraftState
from draft_server.drafting import DraftingThread, HiddenStates
from forerun.tree import Budget, Tree
from tests.fixtures.drafting import ScriptedDrafter, eventually

BUDGET = Budget(4, 4)


class HangingDrafter(ScriptedDrafter):
    """Proposes one token, once `release` is set. fed: positions of hidden states, in order.
    warming: how often it was given time for work that is not urgent, which hangs as well."""

    info = DrafterInfo("hanging", hidden_taps=(0,))

    def __init__(self) -> None:
        super().__init__(self._propose)
        self.release = threading.Event()
        self.fed: list[int] = []
        self.committed: list[int] = []
        self.warming = 0

    def warm(self) -> bool:
        self.warming += 1
        self.release.wait(20)
        return False

    def _propose(self, committed: list[int], budget: Budget) -> Tree:
        self.release.wait(20)
        self.committed = list(committed)
        return Tree.chain([committed[-1], 7])

    def feed(self, state: DraftState, first_position: int, hidden: NDArray[np.uint16]) -> None:
        assert hidden.tolist() == [[first_position]]
        self.fed.append(first_position)


@pytest.fixture
async def thread() -> AsyncIterator[DraftingThread]:
    thread = DraftingThread(HangingDrafter(), timeout_s=0.02)
    thread.start()
    yield thread
    thread.drafter.release.set()  # type: ignore[attr-defined]
    await thread.stop()


def states(position: int) -> HiddenStates:
    return HiddenStates(position, 1, position.to_bytes(2, "little"))


async def test_what_comes_while_a_batch_is_overdue_is_told_afterwards(
    thread: DraftingThread,
) -> None:
    drafter = thread.drafter
    assert isinstance(drafter, HangingDrafter)
    answers: list[tuple[Tree | None, str]] = []
    handle = thread.open([1], lambda tree, reason: answers.append((tree, reason)))
    thread.tell(handle, hidden=states(0))
    thread.submit(handle, [], BUDGET)
    await eventually(lambda: len(answers) == 1, "the batch is overdue")
    queued = thread.num_waiting
    for position in (1, 2):
        thread.tell(handle, hidden=states(position))
        thread.submit(handle, [position + 1], BUDGET)
        await eventually(lambda: len(answers) == position + 1, "it is answered at once")  # noqa: B023
    assert answers == [(None, "draft_late")] * 3
    others = [thread.open([9] * 100, lambda tree, reason: None) for _ in range(50)]
    for other in others:
        thread.tell(other, [1, 2, 3], states(0))
        thread.close(other)
    assert thread.num_waiting == queued
    drafter.release.set()
    await eventually(lambda: bool(drafter.committed), "it comes back")
    await asyncio.sleep(0.01)
    thread.submit(handle, [4], BUDGET)
    await eventually(lambda: len(answers) == 4, "it drafts again")
    assert answers[-1] == (Tree.chain([4, 7]), "")
    assert drafter.committed == [1, 2, 3, 4]
    assert drafter.fed == [0, 1, 2]
    assert drafter.open_states == 1, "those that came and went meanwhile were never opened"


async def test_drafting_is_back_where_nobody_waits_for_the_overdue_batch(
    thread: DraftingThread,
) -> None:
    drafter = thread.drafter
    assert isinstance(drafter, HangingDrafter)
    late: list[str] = []
    await eventually(lambda: drafter.warming == 1, "the thread hangs")
    handle = thread.open([1], lambda tree, reason: late.append(reason))
    thread.submit(handle, [], BUDGET)
    await eventually(lambda: late == ["draft_late"], "it is late")
    thread.close(handle)
    drafter.release.set()
    await eventually(lambda: drafter.warming > 1, "it is back, and has drafted for nobody")
    await asyncio.sleep(0.01)
    trees: list[Tree | None] = []
    other = thread.open([3], lambda tree, reason: trees.append(tree))
    thread.submit(other, [], BUDGET)
    await eventually(lambda: bool(trees), "it is answered")
    assert trees == [Tree.chain([3, 7])]

"""Under load new sessions are drafted for without hidden states; without load all have them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from draft_server.demand import TRIAL, Demand
from draft_server.drafters.base import DrafterInfo
from forerun.tree import Budget
from tests.fixtures.drafting import ScriptedDrafter, alphabet, drafting_pair, eventually, following

PROMPT = "hello a"
MANY_SESSIONS = 4
SEEING = DrafterInfo("seeing", hidden_taps=(1, 2), blind=True)


class SeeingDrafter(ScriptedDrafter):
    info = SEEING


async def _taps(drafter: ScriptedDrafter, budget: Budget, sessions: int) -> list[Sequence[int]]:
    """The taps of sessions that come while as many others go on, after those have had their way."""
    async with drafting_pair(drafter=drafter, budgets=lambda round_: budget) as pair:
        for _ in range(4):  # long answers, one after the other, whose rounds tell what is granted
            tasks = [
                asyncio.create_task(pair.client.generate(PROMPT, max_tokens=60).result())
                for _ in range(sessions)
            ]
            await asyncio.gather(*tasks)
        before = len(pair.verifier.opens)
        gate = asyncio.Event()
        pair.verifier.before_round = lambda live: gate.wait()
        tasks = [
            asyncio.create_task(pair.client.generate(PROMPT, max_tokens=4).result())
            for _ in range(sessions + TRIAL)
        ]
        opened = before + sessions + TRIAL
        await eventually(lambda: len(pair.verifier.opens) == opened, "all sessions are open")
        gate.set()
        for answer in await asyncio.gather(*tasks):
            assert len(answer.token_ids) == 4
        return [tuple(opened.hidden_taps) for opened in pair.verifier.opens[before + sessions :]]


async def test_many_sessions_that_are_granted_nothing_go_on_without_hidden_states() -> None:
    taps = await _taps(SeeingDrafter(following(alphabet)), Budget(0, 0), MANY_SESSIONS)
    assert taps.count(()) == TRIAL - 1, "all but one, which tells whether it has changed"


async def test_sessions_that_are_granted_trees_have_hidden_states() -> None:
    taps = await _taps(SeeingDrafter(following(alphabet)), Budget(8, 8), MANY_SESSIONS)
    assert taps == [(1, 2)] * TRIAL


async def test_who_cannot_draft_without_hidden_states_decodes_plainly() -> None:
    drafter = SeeingDrafter(following(alphabet))
    drafter.info = replace(SEEING, blind=False)
    async with drafting_pair(drafter=drafter) as pair:
        pair.server.drafting.demand.wants_hidden_states = lambda *, beside: False  # type: ignore[method-assign]
        answer = await pair.client.generate(PROMPT, max_tokens=20).result()
        assert len(answer.token_ids) == 20
        (opened,) = pair.verifier.opens
        assert not opened.drafting and not opened.hidden_taps
        assert drafter.calls == 0


def test_a_session_alone_always_has_them() -> None:
    demand = Demand()
    for _ in range(1000):
        demand.record(0, sessions=1)
        demand.record(0, sessions=2)
    assert demand.wants_hidden_states(beside=0)
    assert not demand.wants_hidden_states(beside=1)


def test_larger_grants_bring_them_back() -> None:
    demand = Demand()
    for _ in range(1000):
        demand.record(2, sessions=4)
    assert not demand.wants_hidden_states(beside=4)
    assert not demand.wants_hidden_states(beside=40), "nothing is known of so many but of fewer"
    for _ in range(32):
        demand.record(8, sessions=5)
    assert demand.wants_hidden_states(beside=4)


def test_who_has_nothing_else_gets_them_until_rounds_have_told() -> None:
    demand = Demand(blind=False)
    assert demand.wants_hidden_states(beside=11)
    for _ in range(1000):
        demand.record(0, sessions=12)
    assert not demand.wants_hidden_states(beside=11)


def test_sessions_beside_others_get_them_once_rounds_have_told() -> None:
    demand = Demand()
    assert demand.wants_hidden_states(beside=0)
    assert not demand.wants_hidden_states(beside=1)
    for _ in range(20):
        demand.record(8, sessions=2)  # rounds of the first one, beside one other
    assert demand.wants_hidden_states(beside=1)

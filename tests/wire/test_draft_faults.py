"""Nothing that a drafter does changes what the user gets; at worst decoding is plain."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from forerun.tree import Budget, Tree
from tests.fixtures.drafting import (
    ScriptedDrafter,
    alphabet,
    drafting_pair,
    eventually,
    following,
)
from tests.fixtures.scripted_target import decode_plainly
from tests.fixtures.scripted_verifier import Live

PROMPT = "hello a"
BASE = decode_plainly(alphabet, list(PROMPT.encode()), 80)


class Failing(ScriptedDrafter):
    """Raises in one method, every `every`-th time."""

    def __init__(self, method: str, every: int) -> None:
        super().__init__(following(alphabet))
        original, count = getattr(self, method), 0

        def failing(*arguments: object) -> object:
            nonlocal count
            count += 1
            if count % every == 0:
                raise RuntimeError("the drafter broke")
            return original(*arguments)

        setattr(self, method, failing)


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("method", ["open", "advance", "draft", "warm", "close"])
async def test_a_drafter_that_raises(method: str, every: int) -> None:
    async with drafting_pair(drafter=Failing(method, every)) as pair:
        answers = [pair.client.complete(PROMPT, max_tokens=80) for _ in range(3)]
        for answer in await asyncio.gather(*answers):
            assert list(answer.token_ids) == BASE
        if method in ("advance", "draft"):
            assert pair.sample("fallback_total", reason="drafter_error") > 0


async def test_one_session_at_fault_does_not_cost_the_others_their_drafts() -> None:
    def propose(committed: list[int], budget: Budget) -> Tree:
        if committed[0] == ord("X"):
            raise RuntimeError("this one")
        return following(alphabet)(committed, budget)

    async with drafting_pair(drafter=ScriptedDrafter(propose)) as pair:
        good = [pair.client.complete(PROMPT, max_tokens=80) for _ in range(3)]
        *answers, bad = await asyncio.gather(*good, pair.client.complete("Xa", max_tokens=80))
        for answer in answers:
            assert list(answer.token_ids) == BASE
            assert answer.stats.plain_steps == 0
        assert list(bad.token_ids) == decode_plainly(alphabet, list(b"Xa"), 80)
        assert bad.stats.rounds == 0


async def test_a_drafter_that_is_late() -> None:
    def propose(committed: list[int], budget: Budget) -> Tree:
        time.sleep(0.05)
        return following(alphabet)(committed, budget)

    config = {"draft_timeout_ms": 5.0}
    async with drafting_pair(drafter=ScriptedDrafter(propose), config=config) as pair:
        answer = await pair.client.complete(PROMPT, max_tokens=40)
        assert list(answer.token_ids) == BASE[:40]
        assert pair.sample("fallback_total", reason="draft_late") > 0


async def test_a_drafter_that_hangs() -> None:
    """All rounds but the first few are decoded plainly, at once; afterwards drafting is back."""
    release = threading.Event()

    def propose(committed: list[int], budget: Budget) -> Tree:
        release.wait(20)
        return following(alphabet)(committed, budget)

    drafter = ScriptedDrafter(propose)
    async with drafting_pair(drafter=drafter, config={"draft_timeout_ms": 30.0}) as pair:
        answer = await pair.client.complete(PROMPT, max_tokens=80)
        assert list(answer.token_ids) == BASE and answer.stats.rounds == 0
        queued = pair.server.drafting.num_waiting
        for _ in range(3):
            answer = await pair.client.complete(PROMPT, max_tokens=80)
            assert list(answer.token_ids) == BASE
        assert pair.server.drafting.num_waiting == queued <= 1, "nothing piles up meanwhile"
        release.set()
        await eventually(lambda: drafter.open_states == 0, "it is back, and has let go of all")
        answer = await pair.client.complete(PROMPT, max_tokens=80)
        assert list(answer.token_ids) == BASE and answer.stats.rounds > 0


async def test_a_session_that_ends_while_the_drafter_hangs_does_not_keep_drafting_off() -> None:
    """What was asked is nobody's any more when the batch comes back."""
    release = threading.Event()

    def propose(committed: list[int], budget: Budget) -> Tree:
        release.wait(20)
        return following(alphabet)(committed, budget)

    drafter = ScriptedDrafter(propose)
    async with drafting_pair(drafter=drafter, config={"draft_timeout_ms": 30.0}) as pair:
        first = asyncio.create_task(pair.client.complete(PROMPT, max_tokens=1900))
        await eventually(lambda: drafter.calls == 1, "the drafter hangs")
        second = asyncio.create_task(pair.client.complete(PROMPT + "bc", max_tokens=1900))
        late = lambda: pair.sample("fallback_total", reason="draft_late") > 3  # noqa: E731
        await eventually(late, "both are late")
        for task in (first, second):
            task.cancel()
        await asyncio.gather(first, second, return_exceptions=True)
        await eventually(lambda: pair.sample("sessions") == 0, "both are gone")
        release.set()
        await eventually(lambda: drafter.open_states == 0, "the drafter is back")
        answer = await pair.client.complete(PROMPT, max_tokens=80)
        assert list(answer.token_ids) == BASE and answer.stats.rounds > 0


async def test_a_verifier_that_does_not_wait() -> None:
    def propose(committed: list[int], budget: Budget) -> Tree:
        time.sleep(0.01)
        return following(alphabet)(committed, budget)

    drafter = ScriptedDrafter(propose)
    async with drafting_pair(drafter=drafter, patience_s=0.002) as pair:
        answer = await pair.client.complete(PROMPT, max_tokens=60)
        assert list(answer.token_ids) == BASE[:60]
        assert pair.sample("fallback_total", reason="draft_late") > 0


async def test_a_draft_that_nobody_waits_for_any_more_is_not_sent() -> None:
    async def slowly(live: Live) -> None:
        await asyncio.sleep(0.003)

    def propose(committed: list[int], budget: Budget) -> Tree:
        time.sleep(0.05)
        return following(alphabet)(committed, budget)

    def budgets(round_: int) -> Budget:
        return Budget(4, 4) if round_ == 1 else Budget(0, 0)

    drafter = ScriptedDrafter(propose)
    async with drafting_pair(drafter=drafter, budgets=budgets, patience_s=0.002) as pair:
        pair.verifier.before_round = slowly
        answer = await pair.client.complete(PROMPT, max_tokens=80)
        assert list(answer.token_ids) == BASE
        assert not pair.verifier.trees
        assert pair.sample("stale_total", kind="draft") == 1


async def test_wrong_drafts_cost_acceptance_alone() -> None:
    def propose(committed: list[int], budget: Budget) -> Tree:
        return Tree.chain([committed[-1], 1, 2, 3])

    async with drafting_pair(drafter=ScriptedDrafter(propose)) as pair:
        answer = await pair.client.complete(PROMPT, max_tokens=40)
        assert list(answer.token_ids) == BASE[:40]
        assert (answer.stats.accepted, answer.stats.rounds) == (0, 38)
        assert answer.stats.drafted == 3 * 38

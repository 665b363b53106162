"""Generations through a draft server: exact ids, whatever is drafted, and counts that add up."""

from __future__ import annotations

import asyncio
import threading

import pytest

from draft_server.drafters.none import NoDrafter
from forerun.errors import Overloaded
from forerun.tree import Budget, Tree
from tests.fixtures.drafting import (
    ScriptedDrafter,
    alphabet,
    drafting_pair,
    eventually,
    following,
    tiny_tokenizer,
)
from tests.fixtures.scripted_target import decode_plainly, hash_next, script_next
from tests.fixtures.scripted_verifier import Live

PROMPT = "hello a"
PROMPT_IDS = list(PROMPT.encode())


def base(count: int, next_token=alphabet) -> list[int]:  # type: ignore[no-untyped-def]
    return decode_plainly(next_token, PROMPT_IDS, count)


@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("budget", [Budget(1, 1), Budget(9, 3), Budget(12, 12)])
async def test_ids_are_those_of_plain_decoding(width: int, budget: Budget) -> None:
    drafter = ScriptedDrafter(following(alphabet, width))
    async with drafting_pair(drafter=drafter, budgets=lambda round_: budget) as pair:
        answer = await pair.client.complete(PROMPT, max_tokens=60)
        assert list(answer.token_ids) == base(60)
        assert answer.text == bytes(base(60)).decode()
        assert answer.finish_reason == "length"
        assert answer.stats.prompt_tokens == len(PROMPT_IDS)
        assert answer.stats.emitted == 60
        assert 0 < answer.stats.ttft_s <= answer.stats.total_s
        assert all(len(tree.tree.token_ids) <= budget.nodes + 1 for tree in pair.verifier.trees)


@pytest.mark.parametrize("next_token", [alphabet, hash_next(256)])
async def test_ngram_drafts_are_exact(next_token) -> None:  # type: ignore[no-untyped-def]
    async with drafting_pair(next_token) as pair:
        answer = await pair.client.complete(PROMPT, max_tokens=150)
        assert list(answer.token_ids) == base(150, next_token)
        if next_token is alphabet:
            assert answer.stats.accepted > 50


async def test_draft_equal_to_target_is_always_accepted() -> None:
    next_token = hash_next(256)
    drafter = ScriptedDrafter(following(next_token))
    async with drafting_pair(next_token, drafter, budgets=lambda _: Budget(4, 4)) as pair:
        answer = await pair.client.complete(PROMPT, max_tokens=201)
        assert answer.stats.acceptance_rate == 1.0
        assert answer.stats.rounds == 40


async def test_counts_and_metrics_add_up() -> None:
    """Rounds of four nodes that accept 0, 2 and 4: 12 proposed, 6 accepted, 9 emitted."""
    accepts = iter([0, 2, 4])

    def propose(committed: list[int], budget: Budget) -> Tree:
        right = following(alphabet)(committed, Budget(4, 4)).token_ids
        good = next(accepts)
        return Tree.chain([*right[: good + 1], *(1 for _ in range(4 - good))])

    in_flight: list[float] = []

    async def look(_: Live) -> None:
        in_flight.append(pair.sample("trees_in_flight"))

    async with drafting_pair(drafter=ScriptedDrafter(propose)) as pair:
        pair.verifier.before_round = look
        answer = await pair.client.complete(PROMPT, max_tokens=10)
        stats = answer.stats
        assert (stats.rounds, stats.drafted, stats.accepted, stats.emitted) == (3, 12, 6, 10)
        assert in_flight == [1, 1, 1] and pair.sample("trees_in_flight") == 0
        assert stats.drafted_by_depth == [3, 3, 3, 3]
        assert stats.accepted_by_depth == [2, 2, 1, 1]
        assert stats.mean_accepted_length == 2.0
        assert pair.sample("rounds_total") == 3
        assert pair.sample("drafted_nodes_total") == 12
        assert pair.sample("accepted_total") == 6
        assert pair.sample("bonus_total") == 3
        assert pair.sample("accepted_by_depth_total", depth="4") == 1
        assert pair.sample("emitted_total") == 10
        assert pair.sample("finished_total", reason="length") == 1
        assert pair.sample("sessions") == 0


@pytest.mark.parametrize("nodes", [0, 3])
async def test_nodes_that_were_not_verified_are_not_counted(nodes: int) -> None:
    """A verify server without the time for a whole tree says how much of it took part."""
    drafter = ScriptedDrafter(following(alphabet))
    async with drafting_pair(drafter=drafter, budgets=lambda _: Budget(5, 5)) as pair:
        pair.verifier.time_for = nodes
        stats = (await pair.client.complete("hello b", max_tokens=12)).stats
        assert {len(tree.tree.token_ids) for tree in pair.verifier.trees} >= {6}
        assert stats.acceptance_rate == (1.0 if nodes else None)
        assert stats.drafted_by_depth == stats.accepted_by_depth
        assert stats.stale_trees == 0
        assert (stats.rounds == 0) == (stats.plain_steps > 0) == (nodes == 0)
        assert pair.sample("drafted_nodes_total") == stats.drafted == stats.accepted


async def test_emitted_is_what_clients_received() -> None:
    async with drafting_pair() as pair:
        received = 0
        for count, stop in ((7, ()), (40, ("xy",)), (1, ())):
            answer = await pair.client.complete(PROMPT, max_tokens=count, stop=stop)
            assert answer.stats.emitted == len(answer.token_ids)
            received += len(answer.token_ids)
        assert pair.sample("emitted_total") == received


async def test_one_token_needs_no_draft() -> None:
    drafter = ScriptedDrafter(following(alphabet))
    async with drafting_pair(drafter=drafter) as pair:
        answer = await pair.client.complete(PROMPT, max_tokens=1)
        assert list(answer.token_ids) == base(1) and answer.finish_reason == "length"
        assert drafter.calls == 0 and answer.stats.rounds == 0


async def test_the_last_token_is_not_drafted_for() -> None:
    drafter = ScriptedDrafter(following(alphabet))
    async with drafting_pair(drafter=drafter) as pair:
        answer = await pair.client.complete(PROMPT, max_tokens=2)
        assert list(answer.token_ids) == base(2)
        assert drafter.calls == 0
        assert pair.sample("fallback_total", reason="last_token") == 1


async def test_eos_as_first_token_gives_empty_text() -> None:
    eos = tiny_tokenizer().eos_token_ids[0]
    async with drafting_pair(script_next(len(PROMPT_IDS), [eos]), eos_token_ids=[eos]) as pair:
        answer = await pair.client.complete(PROMPT, max_tokens=9)
        assert (answer.token_ids, answer.text, answer.finish_reason) == ((eos,), "", "stop")


async def test_nothing_follows_an_accepted_eos_and_a_refused_one_is_harmless() -> None:
    eos = tiny_tokenizer().eos_token_ids[0]
    target = script_next(len(PROMPT_IDS), [*b"abcd", eos, *b"efg"])

    def propose(committed: list[int], budget: Budget) -> Tree:
        # [x, EOS, y]: refused after "a", accepted after "abc".
        return Tree.chain([committed[-1], target(tuple(committed)), eos, ord("e")])

    async with drafting_pair(target, ScriptedDrafter(propose), eos_token_ids=[eos]) as pair:
        answer = await pair.client.complete(PROMPT, max_tokens=99)
        assert list(answer.token_ids) == [*b"abcd", eos]
        assert (answer.text, answer.finish_reason) == ("abcd", "stop")
        assert answer.stats.emitted == 5
        ignoring = await pair.client.complete(PROMPT, max_tokens=8, ignore_eos=True)
        assert list(ignoring.token_ids) == [*b"abcd", eos, *b"efg"]


@pytest.mark.parametrize("depth", [1, 3, 12])
@pytest.mark.parametrize("stop", [["def"], ["zz", "gh"], ["kl", "klm"], ["never"]])
async def test_stop_strings_cut_text_ids_and_counts_alike(depth: int, stop: list[str]) -> None:
    text = bytes(base(30)).decode()
    ends = [text.find(one) + len(one) for one in stop if one in text]
    drafter = ScriptedDrafter(following(alphabet))
    async with drafting_pair(drafter=drafter, budgets=lambda _: Budget(depth, depth)) as pair:
        pieces, tokens = [], []
        stream = pair.client.generate(PROMPT, max_tokens=30, stop=stop)
        async for chunk in stream:
            pieces.append(chunk.text)
            tokens += chunk.token_ids
            assert chunk.accepted <= len(chunk.token_ids)
        answer = await stream.result()
        cut = min(ends, default=30)
        assert tokens == base(30)[:cut]
        assert answer.stats.emitted == cut
        assert answer.finish_reason == ("stop" if ends else "length")
        shown = "".join(pieces)
        assert text.startswith(shown) and not any(one in shown for one in stop)
        if ends:
            await eventually(lambda: not pair.verifier.live, "the verifier ends the session")
            assert len(pair.verifier.cancels) == 1
            assert pair.sample("stale_total", kind="verdict") == 0


async def test_plain_and_none_ask_for_no_trees() -> None:
    async with drafting_pair() as pair:
        answer = await pair.client.complete(PROMPT, max_tokens=40, plain=True)
        assert list(answer.token_ids) == base(40)
        assert not pair.verifier.opens[0].drafting and not pair.verifier.trees
        assert (answer.stats.rounds, answer.stats.plain_steps) == (0, 39)
    async with drafting_pair(drafter=NoDrafter()) as pair:
        answer = await pair.client.complete(PROMPT, max_tokens=40)
        assert list(answer.token_ids) == base(40) and not pair.verifier.opens[0].drafting


async def test_budget_zero_sends_nothing_and_the_drafter_follows() -> None:
    drafter = ScriptedDrafter(following(alphabet))

    def budgets(round_: int) -> Budget:
        return Budget(0, 0) if 3 <= round_ < 30 else Budget(4, 4)

    async with drafting_pair(drafter=drafter, budgets=budgets) as pair:
        answer = await pair.client.complete(PROMPT, max_tokens=80)
        assert list(answer.token_ids) == base(80)
        assert not [tree for tree in pair.verifier.trees if 3 <= tree.round < 30]
        assert answer.stats.plain_steps >= 27
        assert answer.stats.acceptance_rate == 1.0, "drafting resumes in step"


async def test_sessions_that_wait_are_drafted_for_together() -> None:
    release = threading.Event()

    def propose(committed: list[int], budget: Budget) -> Tree:
        assert release.wait(20)
        return following(alphabet)(committed, budget)

    drafter = ScriptedDrafter(propose)
    config = {"draft_timeout_ms": 20_000.0}
    async with drafting_pair(drafter=drafter, config=config, patience_s=20.0) as pair:
        streams = [pair.client.generate(PROMPT, max_tokens=40) for _ in range(8)]
        answers = [asyncio.create_task(stream.result()) for stream in streams]
        taken = lambda: drafter.open_states + sum(drafter.batches)  # noqa: E731
        jobs = lambda: taken() + pair.server.drafting.num_waiting  # noqa: E731
        await eventually(lambda: jobs() == 2 * 8, "all are open, and have asked for a tree")
        release.set()
        for answer in await asyncio.gather(*answers):
            assert list(answer.token_ids) == base(40)
        assert max(drafter.batches) > 1
        assert pair.verifier.streams == 1


async def test_an_error_of_one_session_is_the_callers() -> None:
    async with drafting_pair() as pair:
        pair.verifier.refuse = Overloaded("no pages", reason="KV_FULL", retry_after_ms=70)
        with pytest.raises(Overloaded) as caught:
            await pair.client.complete(PROMPT, max_tokens=4)
        assert (caught.value.reason, caught.value.retry_after_ms) == ("KV_FULL", 70)
        assert pair.sample("finished_total", reason="error") == 1
        pair.verifier.refuse = None
        assert list((await pair.client.complete(PROMPT, max_tokens=4)).token_ids) == base(4)

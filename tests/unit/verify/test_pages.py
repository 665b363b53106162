"""The pool under pressure: sessions wait, give way and come back; nothing leaks, nothing locks up,
and output stays that of plain decoding."""

from __future__ import annotations

import random
from typing import Any

import pytest

from forerun.errors import Unavailable
from forerun.tree import Tree
from tests.fixtures.scripted_target import (
    ScriptedTarget,
    decode_plainly,
    hash_next,
    hidden_state,
)
from tests.fixtures.scripted_trees import chain, random_tree
from tests.fixtures.stepping import Seen, Stepping
from verify_server.admission import Admission
from verify_server.config import VerifyConfig
from verify_server.events import EndAll, OpenSession, Refuse
from verify_server.residency import Residency
from verify_server.sessions import Phase, Session

VOCAB = 1000
NEXT = hash_next(VOCAB)


def small_pool(pages: int = 6, **settings: Any) -> Stepping:
    target = ScriptedTarget(NEXT, page_size=4, pages_total=pages, max_context=200)
    return Stepping(target, **({"draft_nodes": 3, "draft_depth": 3} | settings))


def test_a_server_that_has_done_nothing_tells_of_its_pool() -> None:
    samples = {
        (sample.name, *sample.labels.values()): sample.value
        for family in small_pool(pages=6).metrics.registry.collect()
        for sample in family.samples
    }
    assert samples["forerun_verify_pages", "free"] == 6
    assert samples["forerun_verify_sessions", "decoding"] == 0
    assert samples["forerun_verify_finished_total", "length"] == 0
    assert samples["forerun_verify_rows_total", "prefill"] == 0


def assert_base(stepping: Stepping, max_tokens: int) -> None:
    for seen in stepping.seen.values():
        assert seen.tokens == decode_plainly(NEXT, seen.prompt, max_tokens)
        assert seen.finished[0].stats.emitted == max_tokens
    total = stepping.target.info.pages_total
    assert stepping.target.pages_free == total
    assert stepping.metrics.value("pages", state="free") == total
    assert stepping.metrics.value("pages", state="held") == 0
    assert all(stepping.metrics.value("sessions", phase=phase.value) == 0 for phase in Phase)


def test_three_sessions_on_six_pages_finish_with_one_preempted() -> None:
    stepping = small_pool()
    for number in (1, 2, 3):
        stepping.open(number, [number], 16, drafting=True)
    stepping.run(lambda seen: chain(NEXT, seen.committed, 1, 2, VOCAB))
    assert stepping.metrics.value("preemptions_total") >= 1
    assert stepping.target.fewest_free == 0
    assert_base(stepping, 16)


def test_three_plain_sessions_on_six_pages_finish() -> None:
    stepping = small_pool()
    for number in (1, 2, 3):
        stepping.open(number, [number], 20)
    stepping.run()
    assert stepping.metrics.value("preemptions_total") >= 1
    assert_base(stepping, 20)


def test_a_tree_that_answers_after_a_preemption_is_dropped() -> None:
    """The session loses its pages in the middle of a round; its draft answers after it is back."""
    stepping = small_pool()
    oldest = stepping.open(1, [1], 18)
    stepping.open(2, [2], 18)
    youngest = stepping.open(3, [3], 18, drafting=True, patience_us=10**6)
    while not stepping.metrics.value("preemptions_total"):
        stepping.now_ns += 1
        stepping.step()
    assert not youngest.finished
    stale = chain(NEXT, youngest.committed, 2, 1, VOCAB)
    stamp = {"round": youngest.round, "committed_len": len(youngest.committed)}
    stepping.send(3, stale, **stamp)
    assert stepping.metrics.value("stale_trees_total", reason="preempted") == 1
    rounds = len(youngest.verdicts)
    while len(youngest.verdicts) == rounds:
        stepping.now_ns += 1
        stepping.step()
    assert oldest.finished, "the oldest goes first"
    assert youngest.verdicts[-1].plain, "the round that was on is decoded plainly"
    stepping.send(3, stale, **stamp)
    assert stepping.metrics.value("stale_trees_total", reason="round") == 1
    stepping.run()
    assert_base(stepping, 18)


def test_a_tree_that_is_there_when_pages_go_is_dropped() -> None:
    stepping = small_pool(pages=4, draft_nodes=1)
    old = stepping.open(1, [1] * 7, 9)
    young = stepping.open(2, [2] * 5, 5, drafting=True, patience_us=10**6)
    for _ in range(2):
        stepping.now_ns += 1
        stepping.step()
    assert young.opened
    stepping.now_ns += 1
    stepping.send(2, chain(NEXT, young.committed, 1, 0, VOCAB))
    assert stepping.target.pages_free == 0
    stepping.step()  # the older one needs its third page
    assert stepping.metrics.value("preemptions_total") == 1
    assert stepping.metrics.value("stale_trees_total", reason="preempted") == 1
    stepping.run()
    assert young.verdicts[0].plain
    assert old.tokens == decode_plainly(NEXT, old.prompt, 9)
    assert young.tokens == decode_plainly(NEXT, young.prompt, 5)


def test_a_tree_shrinks_to_a_plain_step_before_anybody_loses_pages() -> None:
    stepping = small_pool(pages=4, draft_nodes=8, draft_depth=8)
    old = stepping.open(1, [1, 2, 3], 12, drafting=True)
    stepping.step()
    assert old.budget.nodes == 8
    stepping.open(2, [4, 5, 6], 2)
    stepping.step()
    assert stepping.target.pages_free < 3
    stepping.send(1, chain(NEXT, old.committed, 8, 0, VOCAB))
    stepping.step()
    assert stepping.metrics.value("stale_trees_total", reason="no_pages") in (0, 1)
    assert stepping.metrics.value("preemptions_total") == 0
    stepping.run()
    assert old.tokens == decode_plainly(NEXT, [1, 2, 3], 12)


def test_sessions_wait_for_pages_in_order_of_arrival() -> None:
    stepping = small_pool(pages=3)
    for number in range(1, 6):
        stepping.open(number, [number] * 7, 3)
    order: list[int] = []
    for _ in range(40):
        stepping.now_ns += 1
        for stream in stepping.step().values():
            order += [opened.session for opened in stream.opened]
    assert order == [1, 2, 3, 4, 5]
    assert_base(stepping, 3)


def test_a_prompt_that_never_fits_is_an_error_and_a_full_queue_is_another() -> None:
    stepping = small_pool(pages=3, max_waiting=2)
    never = stepping.open(1, [1] * 12, 5)
    fits = stepping.open(2, [2] * 11, 5)
    for number in (3, 4, 5):
        stepping.open(number, [number] * 9, 2)
    stepping.run()
    assert never.failures[0].error.reason == "PROMPT_TOO_LONG"
    assert never.failures[0].error.fields[0].field == "open.prompt_token_ids"
    assert len(fits.tokens) == 1, "the pool is the context limit where it is smaller"
    refused = stepping.seen[5].failures[0].error
    assert (refused.code, refused.reason) == ("RESOURCE_EXHAUSTED", "KV_FULL")
    assert refused.retry_after_ms
    assert [len(stepping.seen[n].tokens) for n in (3, 4)] == [2, 2]


def test_sessions_of_one_stream_are_limited() -> None:
    stepping = small_pool(max_sessions=2)
    for number in (1, 2, 3):
        stepping.open(number, [number], 2)
    stepping.run()
    assert stepping.seen[3].failures[0].error.reason == "TOO_MANY_SESSIONS"
    assert stepping.seen[1].finished and stepping.seen[2].finished


def test_a_session_id_in_use_is_refused_and_its_owner_goes_on() -> None:
    stepping = small_pool()
    seen = stepping.open(1, [1], 5)
    stepping.step()
    stepping.open(1, [2], 5)
    stepping.run()
    assert [failure.ended for failure in seen.failures] == [False]
    assert seen.tokens == decode_plainly(NEXT, [1], 5)


def test_a_prompt_keeps_its_pages_between_chunks() -> None:
    stepping = small_pool(pages=8, prefill_chunk=4)
    long = stepping.open(1, list(range(20)), 4)
    for number in (2, 3, 4):
        stepping.open(number, [number], 8)
    stepping.run()
    assert long.tokens == decode_plainly(NEXT, list(range(20)), 4)


def test_hidden_states_are_sent_once_though_the_prompt_is_computed_twice() -> None:
    """The prompt loses its pages after rows 0 to 4 and comes back in other chunks."""
    stepping = small_pool(pages=5, prefill_chunk=4, draft_nodes=0)
    stepping.open(1, [1, 2, 3], 8)
    prompt = list(range(12))
    young = stepping.open(2, prompt, 3, hidden_taps=[1])
    stepping.run()
    assert stepping.metrics.value("preemptions_total") == 1
    chunks = [(h.first_position, h.rows) for h in young.hidden]
    assert chunks == [(0, 1), (1, 4), (5, 3), (8, 4)]
    data = b"".join(h.data for h in young.hidden)
    expected = [hidden_state(token, p, [1], 2) for p, token in enumerate(prompt)]
    assert data == b"".join(state.astype("<u2").tobytes() for state in expected)
    assert young.tokens == decode_plainly(NEXT, prompt, 3)


def residents(engine: ScriptedTarget, count: int) -> tuple[Residency, list[Session]]:
    """Sessions 1, 2, … on one page each, in a pool that they fill."""
    admission = Admission(engine.info, VerifyConfig(), vocab_size=VOCAB, eos_ids=())
    residency = Residency(engine, 1, lambda session: session.yield_pages(), lambda tokens: None)
    sessions = [admission.session(OpenSession(1, n + 1, [n], 9)) for n in range(count)]
    for session in sessions:
        residency.enter(session)
    assert engine.pages_free == 0
    return residency, sessions


def test_the_youngest_gives_way_first_and_no_older_one_does() -> None:
    engine = ScriptedTarget(NEXT, page_size=4, pages_total=4)
    residency, (first, second, third, fourth) = residents(engine, 4)
    residency.to_back(second)
    assert residency.make_room(second, 5, placed=[])
    assert residency.waiting == [fourth]
    assert residency.make_room(first, 5, placed=[])
    assert residency.waiting == [third, fourth]
    assert not residency.make_room(second, 9, placed=[])
    assert residency.waiting == [second, third, fourth], "the youngest that is left is itself"
    assert residency.residents == [first]


def test_a_session_in_the_coming_step_keeps_its_pages() -> None:
    engine = ScriptedTarget(NEXT, page_size=4, pages_total=3)
    residency, (first, second, third) = residents(engine, 3)
    assert residency.make_room(first, 5, placed=[third])
    assert residency.waiting == [second]
    assert not residency.make_room(first, 9, placed=[third])
    assert first in residency.residents, "it waits for the next step, since the younger one stays"


def test_refusing_and_ending_all() -> None:
    stepping = small_pool()
    first = stepping.open(1, [1], 50)
    stepping.step()
    error = Unavailable("the server is stopping", reason="DRAINING")
    stepping.scheduler.submit(Refuse(error))
    refused = stepping.open(2, [2], 5)
    stepping.step()
    assert refused.failures[0].error is error
    assert not first.ended
    stepping.scheduler.submit(EndAll(error))
    stepping.step()
    assert first.failures[0].error is error
    assert stepping.target.pages_free == stepping.target.info.pages_total


@pytest.mark.parametrize("page_size", [1, 16, 64])
@pytest.mark.parametrize("branching", [1, 4])
def test_no_page_is_lost_over_five_hundred_sessions(page_size: int, branching: int) -> None:
    """Random accepts, a fifth cancelled at random moments, a pool that is always too small."""
    rng = random.Random(page_size * branching)
    target = ScriptedTarget(NEXT, page_size=page_size, pages_total=max(6, 192 // page_size))
    stepping = Stepping(target, max_waiting=500, max_sessions=500, row_budget=64)
    cancelled: set[int] = set()
    counts = {}
    for number in range(500):
        prompt = [rng.randrange(VOCAB) for _ in range(rng.randint(1, 6))]
        counts[number] = rng.randint(1, 12)
        stepping.open(number, prompt, counts[number], drafting=rng.random() < 0.8)

    def draft(seen: Seen) -> Tree | None:
        victim = rng.randrange(500)
        if rng.random() < 0.1 and not stepping.seen[victim].ended and len(cancelled) < 100:
            cancelled.add(victim)
            stepping.cancel(victim)
        if rng.random() < 0.05:
            return None
        return random_tree(rng, NEXT, seen.committed, nodes=rng.randint(0, 6),
                           branching=branching, right=0.6, vocab_size=VOCAB)  # fmt: skip

    stepping.run(draft)
    assert len(cancelled) > 20
    for number, seen in stepping.seen.items():
        expected = decode_plainly(NEXT, seen.prompt, counts[number])
        if number not in cancelled:
            assert seen.tokens == expected
        assert seen.tokens == expected[: len(seen.tokens)]
        assert len(seen.finished) == 1
    assert target.fewest_free == 0
    assert target.pages_free == target.info.pages_total
    emitted = sum(len(seen.tokens) for seen in stepping.seen.values())
    assert stepping.metrics.value("emitted_total") == emitted

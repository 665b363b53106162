"""The scheduler on a scripted target: output equals plain decoding, whatever drafts say."""

from __future__ import annotations

import random

import pytest

from forerun.tree import Budget, Tree
from tests.fixtures.scripted_target import (
    ScriptedTarget,
    decode_plainly,
    hash_next,
    script_next,
)
from tests.fixtures.scripted_trees import chain, random_tree, right_chains
from tests.fixtures.stepping import MILLISECOND, Seen, Stepping
from verify_server.events import CloseStream
from verify_server.stops import FinishReason

VOCAB = 1000
NEXT = hash_next(VOCAB)
right_chain = right_chains(NEXT, VOCAB)
EOS = 7


def test_plain_decoding_equals_base() -> None:
    stepping = Stepping(ScriptedTarget(NEXT))
    began_ns = stepping.now_ns
    seen = stepping.open(1, [1, 2, 3], 20)
    stepping.run()
    assert stepping.now_ns - began_ns < MILLISECOND, "without drafting nothing is waited for"
    assert seen.tokens == decode_plainly(NEXT, [1, 2, 3], 20)
    assert seen.finished[0].reason is FinishReason.LENGTH
    assert all(verdict.plain for verdict in seen.verdicts)
    assert seen.finished[0].stats.plain_steps == 19


def test_first_token_alone_takes_one_forward_and_no_tree() -> None:
    stepping = Stepping(ScriptedTarget(NEXT))
    seen = stepping.open(1, [1, 2, 3], 1, drafting=True)
    stepping.run()
    assert seen.tokens == decode_plainly(NEXT, [1, 2, 3], 1)
    assert seen.finished[0].reason is FinishReason.LENGTH
    assert seen.opened[0].budget == Budget(0, 0)
    assert not seen.verdicts
    assert len(stepping.target.forwards) == 1
    assert stepping.target.pages_free == stepping.target.info.pages_total


def test_eos_as_first_token_stops() -> None:
    stepping = Stepping(ScriptedTarget(script_next(2, [EOS])), eos_ids=[EOS])
    seen = stepping.open(1, [1, 2], 10)
    stepping.run()
    assert seen.tokens == [EOS]
    assert seen.finished[0].reason is FinishReason.STOP


def test_ignored_eos_goes_on_and_a_stop_id_still_ends() -> None:
    stepping = Stepping(ScriptedTarget(script_next(1, [EOS, 3, 4, 5])), eos_ids=[EOS])
    seen = stepping.open(1, [1], 10, ignore_eos=True, stop_token_ids=[4])
    stepping.run()
    assert seen.tokens == [EOS, 3, 4]
    assert seen.finished[0].reason is FinishReason.STOP


@pytest.mark.parametrize(
    ("max_tokens", "tokens", "reason"),
    [(6, [10, 11, EOS], FinishReason.STOP), (3, [10, 11], FinishReason.LENGTH)],
)
def test_stop_inside_an_accepted_block(
    max_tokens: int, tokens: list[int], reason: FinishReason
) -> None:
    script = [9, 10, 11, EOS, 20, 21, 22]
    stepping = Stepping(ScriptedTarget(script_next(1, script)), eos_ids=[EOS])
    seen = stepping.open(1, [1], max_tokens, drafting=True)
    # More than is granted near the end, to have the stop inside the block, not at its edge.
    stepping.step()
    stepping.send(1, Tree.chain([9, 10, 11, EOS, 20, 21]))
    stepping.step()
    assert seen.tokens == [9, *tokens]
    assert seen.finished[0].reason is reason
    stats = seen.finished[0].stats
    assert stats.emitted == len(seen.tokens)
    assert stats.accepted == len(tokens)
    assert seen.verdicts[-1].bonus_token_id is None
    assert len(seen.verdicts[-1].accepted_nodes) == len(tokens)


def test_eos_that_only_the_draft_wants_is_refused_and_the_session_goes_on() -> None:
    stepping = Stepping(ScriptedTarget(script_next(1, [9, 10, 3, 4, 5, 6])), eos_ids=[EOS])
    seen = stepping.open(1, [1], 6, drafting=True)
    stepping.step()
    stepping.send(1, Tree.chain([9, 10, EOS, 20]))
    stepping.step()
    assert seen.verdicts[0].token_ids == [10]
    assert seen.verdicts[0].bonus_token_id == 3
    stepping.send(1, Tree.chain([3, 4, 5]))
    stepping.step()
    assert seen.tokens == [9, 10, 3, 4, 5, 6]
    assert seen.finished[0].reason is FinishReason.LENGTH


@pytest.mark.parametrize("branching", [1, 2, 4])
@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_random_trees_equal_base(branching: int, page_size: int) -> None:
    rng = random.Random(branching)
    target = ScriptedTarget(NEXT, page_size=page_size, pages_total=512 // page_size)
    stepping = Stepping(target, draft_nodes=12, draft_depth=12, row_budget=64)
    sessions = {n: [n, n + 1, n * 2] for n in range(1, 5)}
    for number, prompt in sessions.items():
        stepping.open(number, prompt, 40, drafting=True)

    def draft(seen: Seen) -> Tree:
        nodes = rng.randint(0, seen.budget.nodes)
        return random_tree(rng, NEXT, seen.committed, nodes=nodes, branching=branching,
                           right=0.7, vocab_size=VOCAB)  # fmt: skip

    stepping.run(draft)
    accepted = 0
    for number, prompt in sessions.items():
        seen = stepping.seen[number]
        assert seen.tokens == decode_plainly(NEXT, prompt, 40)
        assert seen.finished[0].stats.emitted == 40
        accepted += seen.finished[0].stats.accepted
    assert accepted > 20, "the test has to exercise compaction"
    assert target.pages_free == target.info.pages_total


def test_every_accepted_proposal_shortens_the_way() -> None:
    stepping = Stepping(ScriptedTarget(NEXT))
    seen = stepping.open(1, [1], 37, drafting=True)
    stepping.run(right_chain)
    assert seen.tokens == decode_plainly(NEXT, [1], 37)
    stats = seen.finished[0].stats
    assert stats.drafted == stats.accepted == 32
    assert stats.rounds == 4  # 1 + 4 * (8 + 1) tokens


def test_a_root_only_tree_is_a_plain_step_at_once() -> None:
    stepping = Stepping(ScriptedTarget(NEXT))
    seen = stepping.open(1, [1], 5, drafting=True)
    stepping.step()
    stepping.send(1, Tree.root_only(seen.tokens[-1]))
    stepping.step()
    assert seen.verdicts[0].plain
    assert seen.verdicts[0].round == 1


def test_a_step_waits_for_nobody() -> None:
    target = ScriptedTarget(NEXT)
    stepping = Stepping(target)
    waiting = stepping.open(1, [1], 9, drafting=True)
    stepping.step()
    running = stepping.open(2, [2], 9)
    for _ in range(9):
        stepping.step()
    assert running.finished
    assert not waiting.verdicts


def test_a_round_holds_all_sessions_that_are_ready() -> None:
    target = ScriptedTarget(NEXT)
    stepping = Stepping(target)
    for number in (1, 2, 3):
        stepping.open(number, [number], 5, drafting=number != 3)
    stepping.step()
    for number in (1, 2):
        stepping.send(number, right_chain(stepping.seen[number]))
    stepping.open(4, [5, 6], 5)
    stepping.step()
    assert sorted(len(rows.token_ids) for rows in target.forwards[-1]) == [1, 2, 4, 4]


def test_output_never_passes_the_context_limit() -> None:
    target = ScriptedTarget(NEXT, max_context=16)
    stepping = Stepping(target)
    seen = stepping.open(1, [1, 2, 3], 500, drafting=True)
    stepping.run(right_chain)
    assert seen.tokens == decode_plainly(NEXT, [1, 2, 3], 13)
    assert seen.finished[0].reason is FinishReason.LENGTH


def test_prompts_take_turns_and_do_not_stop_decoding() -> None:
    target = ScriptedTarget(NEXT, max_rows=32, max_context=150, pages_total=200)
    stepping = Stepping(target, prefill_chunk=8)
    decoding = stepping.open(1, [1], 60)
    stepping.step()
    stepping.open(2, list(range(100)), 1)
    short = stepping.open(3, [5, 6, 7], 1)
    stepping.step()
    stepping.step()
    assert short.finished, "a short prompt waits for one chunk of a long one at most"
    before = len(decoding.tokens)
    stepping.step()
    assert len(decoding.tokens) == before + 1
    stepping.run()
    assert stepping.seen[2].tokens == decode_plainly(NEXT, list(range(100)), 1)


def test_many_decoding_sessions_do_not_starve_a_prompt_nor_each_other() -> None:
    target = ScriptedTarget(NEXT, max_rows=8, pages_total=400)
    stepping = Stepping(target, max_nodes=4, draft_nodes=4, prefill_chunk=4)
    for number in range(1, 21):
        stepping.open(number, [number], 50)
    for _ in range(30):
        stepping.now_ns += 1
        stepping.step()
    before = [len(stepping.seen[number].tokens) for number in range(1, 21)]
    late = stepping.open(99, list(range(8)), 3)
    for _ in range(4):
        stepping.now_ns += 1
        stepping.step()
    assert late.opened, "a quarter of the rows is kept for prompts"
    for _ in range(11):
        stepping.now_ns += 1
        stepping.step()
    emitted = [len(stepping.seen[n].tokens) - before[n - 1] for n in range(1, 21)]
    assert max(emitted) - min(emitted) <= 1
    stepping.run()
    for number in range(1, 21):
        assert stepping.seen[number].tokens == decode_plainly(NEXT, [number], 50)


def test_a_tree_too_large_for_the_rest_is_next_and_holds_nobody_up() -> None:
    target = ScriptedTarget(NEXT, max_rows=16)
    stepping = Stepping(target, max_nodes=8, draft_nodes=8)
    for number in (1, 2, 3):
        stepping.open(number, [number], 30, drafting=True)
    stepping.step()
    for number, nodes in ((1, 8), (2, 8), (3, 0)):
        stepping.now_ns += 1
        seen = stepping.seen[number]
        stepping.send(number, chain(NEXT, seen.committed, nodes, 0, VOCAB))
    stepping.step()
    assert [len(stepping.seen[n].verdicts) for n in (1, 2, 3)] == [1, 0, 1]
    stepping.step()
    assert [len(stepping.seen[n].verdicts) for n in (1, 2, 3)] == [1, 1, 1]
    assert all(len(stepping.seen[n].verdicts[0].accepted_nodes) == 8 for n in (1, 2))


def test_a_deadline_frees_everything_before_work_is_scheduled() -> None:
    target = ScriptedTarget(NEXT)
    stepping = Stepping(target)
    seen = stepping.open(1, [1], 100, deadline_ms=5)
    stepping.step()
    forwards = len(target.forwards)
    stepping.now_ns += 5 * MILLISECOND
    stepping.step()
    assert seen.failures[0].error.code == "DEADLINE_EXCEEDED"
    assert seen.failures[0].ended
    assert len(target.forwards) == forwards
    assert target.pages_free == target.info.pages_total


def test_a_hundred_deadlines_on_a_busy_server_leave_nothing_behind() -> None:
    target = ScriptedTarget(NEXT, pages_total=6)
    stepping = Stepping(target)
    for number in range(100):
        stepping.open(number, [1, 2, 3], 1000, deadline_ms=1000)
    stepping.step()
    stepping.now_ns += 1000 * MILLISECOND
    forwards = len(target.forwards)
    stepping.step()
    assert stepping.scheduler.num_sessions == 0
    assert stepping.scheduler.next_due_ns() is None
    assert len(target.forwards) == forwards
    assert all(
        seen.failures[0].error.code == "DEADLINE_EXCEEDED" for seen in stepping.seen.values()
    )


def test_a_closed_stream_frees_its_sessions_silently() -> None:
    target = ScriptedTarget(NEXT)
    stepping = Stepping(target)
    for number in (1, 2):
        stepping.open(number, [number], 100)
    stepping.step()
    stepping.scheduler.submit(CloseStream(1))
    assert stepping.step() == {}
    assert target.pages_free == target.info.pages_total

"""The scheduler on a scripted target: output equals plain decoding, whatever drafts say."""

from __future__ import annotations

import random

import pytest

from forerun.errors import InvalidTree
from forerun.tree import Budget, Tree
from tests.fixtures.scripted_target import (
    ScriptedTarget,
    decode_plainly,
    hash_next,
    hidden_state,
    script_next,
)
from tests.fixtures.scripted_trees import chain, random_tree, wrong
from tests.fixtures.stepping import MILLISECOND, Seen, Stepping
from verify_server import sizing
from verify_server.budget import LONGEST_PAUSE
from verify_server.costs import StepCosts
from verify_server.events import CloseStream, Outcome
from verify_server.stops import FinishReason

VOCAB = 1000
NEXT = hash_next(VOCAB)
EOS = 7


def right_chain(seen: Seen) -> Tree:
    return chain(NEXT, seen.committed, seen.budget.depth, 0, VOCAB)


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


def test_a_verdict_says_how_much_of_a_tree_took_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """At first all of it has the time, at last none."""
    most = iter([16, 2, 1, 0])
    monkeypatch.setattr(
        sizing, "cut_trees", lambda _, trees, **__: [t.first(next(most)) for t in trees]
    )
    monkeypatch.setattr(StepCosts, "record", lambda self, *_, **__: setattr(self, "fitted", True))
    stepping = Stepping(ScriptedTarget(NEXT))
    seen = stepping.open(1, [1, 2, 3], 60, drafting=True)
    stepping.step()
    for _ in range(4):
        stepping.send(1, chain(NEXT, seen.committed, 4, 0, VOCAB))
        stepping.step()
    assert [verdict.verified_nodes for verdict in seen.verdicts] == [4, 2, 1, 0]
    assert [len(verdict.token_ids) for verdict in seen.verdicts] == [4, 2, 1, 0]
    assert not any(verdict.plain for verdict in seen.verdicts)


@pytest.mark.parametrize("length", [3, 4, 9])
@pytest.mark.parametrize("drafting", [False, True])
def test_a_session_whose_logits_are_no_numbers_fails_alone(length: int, drafting: bool) -> None:
    def undefined(sequence: tuple[int, ...]) -> int:
        # Behind a token that nobody accepts it does not matter.
        broken = sequence[0] == 9 and (len(sequence) >= length or 0 in sequence)
        return -1 if broken else 1 + NEXT(sequence) % (VOCAB - 1)

    stepping = Stepping(ScriptedTarget(undefined))
    bad = stepping.open(1, [9, 1, 2], 20, drafting=drafting)
    good = stepping.open(2, [5, 1, 2], 20, drafting=drafting)

    def draft(seen: Seen) -> Tree:
        root = seen.committed[-1]
        right = undefined(tuple(seen.committed))
        return Tree((root, 0, max(right, 1)), (-1, 0, 0))

    stepping.run(draft)
    assert good.tokens == decode_plainly(undefined, good.prompt, 20)
    # A node that was accepted in the last round goes with it.
    assert length - 3 - drafting <= len(bad.tokens) <= length - 3
    assert bad.tokens == decode_plainly(undefined, bad.prompt, len(bad.tokens))
    assert [failure.error.reason for failure in bad.failures] == ["INTERNAL"]
    assert bad.failures[0].ended and not bad.finished
    assert stepping.target.pages_free == stepping.target.info.pages_total
    assert stepping.scheduler.num_sessions == 0


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


def test_a_late_tree_is_waited_for_no_longer_than_patience() -> None:
    stepping = Stepping(ScriptedTarget(NEXT), patience_ms=20)
    seen = stepping.open(1, [1], 5, drafting=True)
    stepping.step()
    opened_ns = stepping.now_ns
    assert stepping.scheduler.next_due_ns() == opened_ns + 20 * MILLISECOND
    stepping.now_ns = opened_ns + 20 * MILLISECOND - 1
    stepping.step()
    assert not seen.verdicts
    late = Tree.chain([seen.tokens[-1], 1])
    stepping.now_ns = opened_ns + 20 * MILLISECOND
    stepping.step()
    assert seen.verdicts[0].plain
    stepping.send(1, late, round=1)
    stepping.step()
    assert stepping.metrics.value("stale_trees_total", reason="round") == 1
    assert seen.tokens == decode_plainly(NEXT, [1], 2)


def test_the_patience_of_a_session_wins_over_the_default() -> None:
    stepping = Stepping(ScriptedTarget(NEXT), patience_ms=20)
    stepping.open(1, [1], 5, drafting=True, patience_us=1500)
    stepping.step()
    assert stepping.scheduler.next_due_ns() == stepping.now_ns + 1_500_000


def test_no_session_is_waited_for_longer_than_the_cap() -> None:
    stepping = Stepping(ScriptedTarget(NEXT), max_patience_ms=500)
    seen = stepping.open(1, [1], 5, drafting=True, patience_us=2**32 - 1)
    stepping.step()
    assert stepping.scheduler.next_due_ns() == stepping.now_ns + 500 * MILLISECOND
    stepping.run()
    assert seen.tokens == decode_plainly(NEXT, [1], 5)


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


@pytest.mark.parametrize(
    ("stamp", "reason"),
    [
        ({"round": 2}, "round"),
        ({"round": 0}, "round"),
        ({"committed_len": 1}, "committed_len"),
        ({"assumed": Outcome(0, 3, 4)}, "assumed"),
    ],
)
def test_a_tree_for_something_else_is_dropped(stamp: dict[str, object], reason: str) -> None:
    stepping = Stepping(ScriptedTarget(NEXT))
    seen = stepping.open(1, [1], 9, drafting=True)
    stepping.step()
    stepping.send(1, right_chain(seen), **stamp)
    assert stepping.metrics.value("stale_trees_total", reason=reason) == 1
    stepping.run()
    assert seen.tokens == decode_plainly(NEXT, [1], 9)
    assert seen.finished[0].stats.stale_trees == 1


def test_a_tree_whose_assumed_outcome_came_true_is_taken() -> None:
    stepping = Stepping(ScriptedTarget(NEXT))
    seen = stepping.open(1, [1], 20, drafting=True)
    stepping.step()
    stepping.send(1, chain(NEXT, seen.committed, 2, 1, VOCAB))
    stepping.step()
    verdict = seen.verdicts[0]
    assert verdict.bonus_token_id is not None
    stepping.send(1, right_chain(seen), assumed=Outcome(1, 2, verdict.bonus_token_id))
    stepping.step()
    assert len(seen.verdicts[1].accepted_nodes) == 8


def test_a_second_tree_for_a_round_is_dropped() -> None:
    stepping = Stepping(ScriptedTarget(NEXT))
    seen = stepping.open(1, [1], 9, drafting=True)
    stepping.step()
    stepping.send(1, right_chain(seen))
    stepping.send(1, Tree.chain([seen.tokens[-1], wrong(0, VOCAB)]))
    assert stepping.metrics.value("stale_trees_total", reason="duplicate") == 1
    stepping.step()
    assert len(seen.verdicts[0].accepted_nodes) == 7


def test_trees_of_unknown_sessions_are_dropped() -> None:
    stepping = Stepping(ScriptedTarget(NEXT))
    stepping.seen[5] = Seen([1])
    stepping.send(5, Tree.root_only(1))
    assert stepping.metrics.value("stale_trees_total", reason="unknown_session") == 1
    assert stepping.step() == {}


def test_a_malformed_tree_is_reported_and_its_round_is_plain_at_once() -> None:
    stepping = Stepping(ScriptedTarget(NEXT))
    seen = stepping.open(1, [1], 9, drafting=True)
    stepping.step()
    stepping.send(1, Tree((seen.tokens[-1], 1, 2), (-1, 0, 2)))
    stepping.step()
    [failure] = seen.failures
    assert isinstance(failure.error, InvalidTree)
    assert failure.error.fields[0].field == "tree.parents[2]"
    assert not failure.ended
    assert seen.verdicts[0].plain
    stepping.run(right_chain)
    assert seen.tokens == decode_plainly(NEXT, [1], 9)


def test_a_tree_beyond_the_granted_nodes_is_cut() -> None:
    target = ScriptedTarget(NEXT)
    stepping = Stepping(target, draft_nodes=3)
    seen = stepping.open(1, [1], 30, drafting=True)
    stepping.step()
    stepping.send(1, chain(NEXT, seen.committed, 10, 0, VOCAB))
    stepping.step()
    assert len(target.forwards[-1][0].token_ids) == 4
    assert len(seen.verdicts[0].accepted_nodes) == 3
    assert seen.finished == []


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


def test_unaccepted_drafts_fall_to_plain_decoding_and_try_again() -> None:
    stepping = Stepping(ScriptedTarget(NEXT))
    seen = stepping.open(1, [1], 80, drafting=True)
    stepping.run(lambda seen: chain(NEXT, seen.committed, 0, 4, VOCAB))
    drafted = [verdict.round for verdict in seen.verdicts if not verdict.plain]
    assert drafted[:7] == list(range(1, 8))
    assert len(drafted) <= 12
    assert seen.tokens == decode_plainly(NEXT, [1], 80)
    assert seen.finished[0].stats.drafted_by_depth == [len(drafted)] * 2 + [7] * 2


def test_drafts_that_begin_to_be_right_are_found_soon_and_wrong_ones_cost_little() -> None:
    """As where an answer begins to quote its prompt after 600 tokens of its own."""
    target = ScriptedTarget(NEXT, max_context=1000, pages_total=250)
    stepping = Stepping(target)
    seen = stepping.open(1, [1], 700, drafting=True)

    def draft(seen: Seen) -> Tree:
        right = 8 if len(seen.tokens) >= 600 else 0
        return chain(NEXT, seen.committed, right, 8 - right, VOCAB)

    stepping.run(draft)
    assert seen.tokens == decode_plainly(NEXT, [1], 700)
    committed, found = 1, 0
    for verdict in seen.verdicts:
        if verdict.accepted_nodes:
            found = committed
            break
        committed += 1
    assert 600 <= found <= 600 + LONGEST_PAUSE + 1
    stats = seen.finished[0].stats
    wrong_nodes = stats.drafted - stats.accepted
    assert wrong_nodes - 7 * 8 <= 0.08 * 600, "beyond the first rounds, 8 rows in 100 at most"


def test_a_draft_that_takes_long_to_have_nothing_is_waited_for_ever_less() -> None:
    """Its trees have no nodes, and come after more than the server's own patience."""
    stepping = Stepping(ScriptedTarget(NEXT), patience_ms=20)
    seen = stepping.open(1, [1], 100, drafting=True, patience_us=30_000)
    waits = 0
    while not seen.ended:
        due_ns = stepping.scheduler.next_due_ns()
        assert due_ns is not None
        if seen.budget.nodes and seen.answered < seen.round:
            seen.answered = seen.round
            stepping.now_ns = due_ns - 1
            stepping.send(1, Tree.root_only(seen.committed[-1]))
            waits += 1
        stepping.now_ns = max(stepping.now_ns, min(due_ns, stepping.now_ns + 1))
        stepping.step()
    assert seen.tokens == decode_plainly(NEXT, [1], 100)
    assert waits < 12


def test_a_draft_that_has_nothing_yet_is_asked_every_few_rounds() -> None:
    stepping = Stepping(ScriptedTarget(NEXT), patience_ms=20)
    seen = stepping.open(1, [1], 100, drafting=True)

    def draft(seen: Seen) -> Tree:
        stepping.now_ns += 10 * MILLISECOND  # longer than a step takes here
        return Tree.root_only(seen.committed[-1])

    stepping.run(draft)
    asked = [bool(verdict.budget.nodes) for verdict in seen.verdicts[:-2]]
    assert all(any(four) for four in zip(asked, asked[1:], asked[2:], asked[3:], strict=False))


def test_a_silent_draft_is_waited_for_ever_less() -> None:
    stepping = Stepping(ScriptedTarget(NEXT), patience_ms=20)
    seen = stepping.open(1, [1], 100, drafting=True)
    began_ns = stepping.now_ns
    stepping.run()
    assert seen.tokens == decode_plainly(NEXT, [1], 100)
    assert stepping.now_ns - began_ns < 12 * 20 * MILLISECOND


def test_hidden_states_of_prompt_and_rounds() -> None:
    taps = (0, 2, 3)
    target = ScriptedTarget(NEXT)
    stepping = Stepping(target, prefill_chunk=2, max_taps=3)
    prompt = [11, 12, 13, 14, 15]
    seen = stepping.open(1, prompt, 12, drafting=True, hidden_taps=taps)
    while not seen.opened:
        stepping.step()
    assert [(h.first_position, h.rows) for h in seen.hidden] == [(0, 2), (2, 2), (4, 1)]
    stepping.send(1, chain(NEXT, seen.committed, 2, 2, VOCAB))
    stepping.step()
    hidden = seen.verdicts[0].hidden
    assert hidden is not None
    assert (hidden.first_position, hidden.rows) == (5, 3)
    data = b"".join(h.data for h in [*seen.hidden, hidden])
    tokens = [*prompt, *seen.tokens[:3]]
    expected = b"".join(
        hidden_state(token, position, taps, 2).astype("<u2").tobytes()
        for position, token in enumerate(tokens)
    )
    assert data == expected


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


def test_rates_of_scripted_rounds() -> None:
    """K = 4, accepts 0, 2, 4: proposed 12, accepted 6, rate 1/2, emitted 9 beside the first."""
    stepping = Stepping(ScriptedTarget(NEXT), draft_nodes=4)
    seen = stepping.open(1, [1], 100, drafting=True)
    stepping.step()
    for accepts in (0, 2, 4):
        stepping.send(1, chain(NEXT, seen.committed, accepts, 4 - accepts, VOCAB))
        stepping.step()
    stepping.cancel(1)
    stepping.step()
    stats = seen.finished[0].stats
    assert seen.finished[0].reason is FinishReason.CANCELLED
    assert (stats.rounds, stats.drafted, stats.accepted) == (3, 12, 6)
    assert stats.acceptance_rate == 0.5
    assert stats.mean_accepted_length == 2.0
    assert stats.accepted_by_depth == [2, 2, 1, 1]
    assert stats.drafted_by_depth == [3, 3, 3, 3]
    assert stats.emitted == 1 + 9 == len(seen.tokens)
    metrics = stepping.metrics
    assert metrics.value("rounds_total") == 3
    assert metrics.value("drafted_nodes_total") == 12
    assert metrics.value("accepted_total") == 6
    assert metrics.value("emitted_total") == 10
    assert metrics.value("plain_steps_total") == 0
    by_depth = [metrics.value("accepted_by_depth_total", depth=str(d)) for d in (1, 2, 3, 4, 5)]
    assert by_depth == [2, 2, 1, 1, 0]


def test_eos_inside_a_block_counts_no_node_behind_it() -> None:
    script = [9, 10, EOS, 20, 21, 22]
    stepping = Stepping(ScriptedTarget(script_next(1, script)), eos_ids=[EOS])
    seen = stepping.open(1, [1], 50, drafting=True)
    stepping.step()
    stepping.send(1, Tree.chain([9, 10, EOS, 20, 21, 22]))
    stepping.step()
    stats = seen.finished[0].stats
    assert (stats.drafted, stats.accepted, stats.emitted) == (5, 2, 3)
    assert stepping.metrics.value("accepted_total") == 2
    assert stepping.metrics.value("emitted_total") == 3


def test_nodes_depth_and_accepted_of_a_tree_are_counted_apart() -> None:
    stepping = Stepping(ScriptedTarget(NEXT), draft_nodes=16, row_budget=64)
    seen = stepping.open(1, [1], 50, drafting=True)
    stepping.step()
    spine = chain(NEXT, seen.committed, 4, 0, VOCAB)
    token_ids, parents = list(spine.token_ids), list(spine.parents)
    for node in range(4):
        for offset in (1, 2, 3):
            token_ids.append((spine.token_ids[node + 1] + offset) % VOCAB)
            parents.append(node)
    stepping.send(1, Tree(tuple(token_ids), tuple(parents)))
    stepping.step()
    assert stepping.metrics.value("drafted_nodes_total") == 16
    assert stepping.metrics.value("accepted_total") == 4
    assert stepping.metrics.value("drafted_by_depth_total", depth="4") == 1
    assert stepping.metrics.value("drafted_by_depth_total", depth="5") == 0

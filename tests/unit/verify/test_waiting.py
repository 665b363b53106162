"""How long a draft is waited for, and how often it is asked."""

from __future__ import annotations

import pytest

from forerun.tree import Tree
from tests.fixtures.scripted_target import (
    ScriptedTarget,
    decode_plainly,
    hash_next,
)
from tests.fixtures.scripted_trees import chain
from tests.fixtures.stepping import MILLISECOND, Seen, Stepping
from verify_server.budget import LONGEST_PAUSE, Usual

VOCAB = 1000
NEXT = hash_next(VOCAB)


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


def test_unaccepted_drafts_fall_to_plain_decoding_and_try_again() -> None:
    stepping = Stepping(ScriptedTarget(NEXT))
    seen = stepping.open(1, [1], 80, drafting=True)
    stepping.run(lambda seen: chain(NEXT, seen.committed, 0, 4, VOCAB))
    drafted = [verdict.round for verdict in seen.verdicts if not verdict.plain]
    assert drafted[:7] == list(range(1, 8))
    assert len(drafted) <= 12
    assert seen.tokens == decode_plainly(NEXT, [1], 80)
    assert seen.finished[0].stats.drafted_by_depth == [len(drafted)] * 2 + [7] * 2


def test_unaccepted_drafts_are_asked_for_all_the_same_where_all_is_to_be_measured() -> None:
    stepping = Stepping(ScriptedTarget(NEXT), adaptive=False)
    seen = stepping.open(1, [1], 41, drafting=True)
    stepping.run(lambda seen: chain(NEXT, seen.committed, 0, 4, VOCAB))
    stats = seen.finished[0].stats
    assert (stats.rounds, stats.accepted) == (39, 0), "the last token has no room for a proposal"


@pytest.mark.parametrize("adaptive", [False, True])
def test_nothing_is_asked_for_where_speed_matters_alone(
    adaptive: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where drafts usually cost more than they bring."""
    monkeypatch.setattr(Usual, "pays", lambda *_, **__: False)
    stepping = Stepping(ScriptedTarget(NEXT), adaptive=adaptive)
    seen = stepping.open(1, [1], 41, drafting=True)
    stepping.run(lambda seen: chain(NEXT, seen.committed, 2, 2, VOCAB))
    assert seen.verdicts[0].plain is adaptive


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

"""Trees that are stale, unknown or malformed: dropped and counted, never applied."""

from __future__ import annotations

import pytest

from forerun.errors import InvalidTree
from forerun.tree import Tree
from tests.fixtures.scripted_target import (
    ScriptedTarget,
    decode_plainly,
    hash_next,
)
from tests.fixtures.scripted_trees import chain, right_chains, wrong
from tests.fixtures.stepping import Seen, Stepping
from verify_server.events import Outcome

VOCAB = 1000
NEXT = hash_next(VOCAB)
right_chain = right_chains(NEXT, VOCAB)


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

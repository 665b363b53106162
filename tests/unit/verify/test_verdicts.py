"""What a verdict says and what is counted of it: accepted nodes, ends, and logits that are none."""

from __future__ import annotations

import pytest

from forerun.tree import Tree
from tests.fixtures.scripted_target import (
    ScriptedTarget,
    decode_plainly,
    hash_next,
    hidden_state,
    script_next,
)
from tests.fixtures.scripted_trees import chain
from tests.fixtures.stepping import Seen, Stepping
from verify_server import sizing
from verify_server.costs import StepCosts
from verify_server.stops import FinishReason

VOCAB = 1000
NEXT = hash_next(VOCAB)
EOS = 7


def test_a_verdict_says_how_much_of_a_tree_took_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """At first all of it has the time, at last none."""
    most = iter([16, 2, 1, 0])
    monkeypatch.setattr(
        sizing, "cut_trees", lambda _, trees, **__: [t.first(next(most)) for t in trees]
    )
    monkeypatch.setattr(StepCosts, "record", lambda *_, **__: None)
    monkeypatch.setattr(StepCosts, "fitted", True)
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
    assert metrics.value("bonus_total") == 3
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

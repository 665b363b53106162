"""What is learned of confidences, from whom, and what it does to a tree."""

from __future__ import annotations

import itertools
import logging
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draft_server.drafters.base import Calibrates, DrafterInfo
from draft_server.drafters.calibrated import SUSPICIOUS_TREES, CalibratedDrafter
from draft_server.drafters.calibration import DEPTHS, Calibration, Outcomes
from draft_server.drafters.ngram import NgramDrafter
from draft_server.metrics import DraftMetrics
from forerun.tree import Budget, Tree, validate
from tests.fixtures.drafting import ScriptedDrafter

BUDGET = Budget(4, 4)
#       9
#     /   \
#    1     2
#   / \
#  3   4
TREE = Tree((9, 1, 2, 3, 4), (-1, 0, 0, 1, 1), (1.0, 0.6, 0.3, 0.5, 0.25))


def sums(calibration: Calibration) -> list[tuple[int, float, int]]:
    found = dict(calibration.by_depth())
    assert list(found) == list(range(1, DEPTHS + 1))
    return [(o.nodes, round(o.expected, 6), o.hits) for o in found.values() if o.nodes]


@pytest.mark.parametrize(
    ("token_ids", "expected"),
    [
        ([1, 4, 7], [(2, 0.9, 1), (2, 0.75, 1)]),
        ([1, 7], [(2, 0.9, 1), (2, 0.75, 0)]),
        ([1], [(2, 0.9, 1)]),
        ([2, 3], [(2, 0.9, 1)]),
        ([8, 3], [(2, 0.9, 0)]),
        ([], []),
    ],
)
def test_a_node_is_judged_where_its_parent_came_true(
    token_ids: list[int], expected: list[tuple[int, float, int]]
) -> None:
    calibration = Calibration()
    calibration.learn(TREE, token_ids)
    assert sums(calibration) == expected


def test_what_is_right_half_as_often_as_it_says_is_half_as_sure() -> None:
    calibration = Calibration()
    sure = Tree((9, 1), (-1, 0), (1.0, 0.9))
    assert calibration.correct(sure) == sure, "nothing is known yet"
    for times in range(2000):
        calibration.learn(sure, [1] if times % 20 < 9 else [2])
    (_, corrected) = calibration.correct(sure).confidences or ()
    assert corrected == pytest.approx(0.45, abs=0.01)
    deep = Tree((9, 1, 2), (-1, 0, 1), (1.0, 0.9, 0.9))
    assert calibration.correct(deep).confidences == pytest.approx((1.0, 0.45, 0.9), abs=0.01)
    other = Tree((9, 1), (-1, 0), (1.0, 0.5))
    assert calibration.correct(other) == other, "others of this depth are as sure as before"


def test_the_order_follows_the_corrected_paths() -> None:
    calibration = Calibration()
    for _ in range(500):
        calibration.learn(TREE, [2])
    corrected = calibration.correct(TREE)
    assert corrected.token_ids[:2] == (9, 2)
    assert sorted(corrected.token_ids) == sorted(TREE.token_ids)


def edges(tree: Tree) -> set[tuple[int, int]]:
    """Tokens of parents and children, where no token comes twice."""
    pairs = zip(tree.token_ids, tree.parents, strict=True)
    return {(tree.token_ids[parent], token) for token, parent in pairs if parent >= 0}


@given(st.integers(0, 1 << 32))
def test_a_corrected_tree_is_the_same_tree_the_likeliest_first(seed: int) -> None:
    chance = random.Random(seed)
    calibration = Calibration()

    def tree() -> Tree:
        parents = [-1] + [chance.randrange(i) for i in range(1, chance.randrange(1, 16))]
        token_ids = [9] + [10 + i for i in range(1, len(parents))]
        confidences = [1.0] + [chance.random() for _ in parents[1:]]
        return Tree(tuple(token_ids), tuple(parents), tuple(confidences))

    for _ in range(30):
        learned = tree()
        path = learned.path(chance.randrange(len(learned.token_ids)))
        calibration.learn(learned, [*(learned.token_ids[node] for node in path), 1])
    before = tree()
    after = calibration.correct(before)
    validate(after, vocab_size=100, max_nodes=16, max_depth=16, root_token_id=9)
    parent_of = {
        before.token_ids[i]: before.token_ids[max(p, 0)] for i, p in enumerate(before.parents)
    }
    for node, parent in enumerate(after.parents):
        assert parent_of[after.token_ids[node]] == after.token_ids[max(parent, 0)]
    assert len(after.token_ids) == len(before.token_ids)
    if after.num_nodes:
        assert after.confidences is not None
        likely = [
            math.prod(after.confidences[i] for i in after.path(node))
            for node in range(len(after.token_ids))
        ]
        assert all(a >= b - 1e-12 for a, b in itertools.pairwise(likely))


def scripted(max_context: int | None = None) -> ScriptedDrafter:
    """Gives TREE to whoever asks."""
    drafter = ScriptedDrafter(lambda committed, budget: TREE)
    drafter.info = DrafterInfo("scripted", max_context=max_context)
    return drafter


def test_only_the_tokens_behind_a_tree_tell_of_it() -> None:
    drafter = CalibratedDrafter(scripted())
    calibration = drafter.calibrations["scripted"]
    one, other = drafter.open([9]), drafter.open([9])
    drafter.advance(one, [1, 3])
    assert sums(calibration) == [], "no tree was drafted"
    drafter.draft([(one, BUDGET)])
    drafter.advance(other, [1, 3])
    assert sums(calibration) == [], "another session's tokens"
    drafter.advance(one, [])
    drafter.advance(one, [1, 3])
    assert sums(calibration) == [(2, 0.9, 1), (2, 0.75, 1)]
    drafter.advance(one, [1, 3])
    assert sums(calibration) == [(2, 0.9, 1), (2, 0.75, 1)], "tokens of a later round"
    drafter.draft([(other, BUDGET)])
    drafter.close(other)
    again = drafter.open([9])
    drafter.advance(again, [1, 3])
    assert sums(calibration) == [(2, 0.9, 1), (2, 0.75, 1)], "a session that is over"


@pytest.mark.parametrize(("max_context", "warnings"), [(100, 1), (None, 0)])
def test_a_model_that_is_never_right_is_told_of_once(
    max_context: int | None, warnings: int, caplog: pytest.LogCaptureFixture
) -> None:
    drafter = CalibratedDrafter(scripted(max_context))
    state = drafter.open([9])
    with caplog.at_level(logging.WARNING):
        for _ in range(3 * SUSPICIOUS_TREES):
            drafter.draft([(state, BUDGET)])
            drafter.advance(state, [8])
    told = [record for record in caplog.records if "made for this target" in record.message]
    assert len(told) == warnings


def test_a_model_that_is_right_now_and_then_is_not_suspected(
    caplog: pytest.LogCaptureFixture,
) -> None:
    drafter = CalibratedDrafter(scripted(100))
    state = drafter.open([9])
    with caplog.at_level(logging.WARNING):
        for times in range(3 * SUSPICIOUS_TREES):
            drafter.draft([(state, BUDGET)])
            drafter.advance(state, [2 if times == 30 else 8])
    assert not caplog.records


def test_metrics_tell_how_far_confidences_can_be_trusted() -> None:
    drafter = CalibratedDrafter(NgramDrafter())
    assert isinstance(drafter, Calibrates)
    metrics = DraftMetrics()
    metrics.watch(drafter.calibrations)
    drafter.calibrations["ngram"].learn(TREE, [1, 4])

    def value(name: str, depth: int) -> float | None:
        labels = {"method": "ngram", "depth": str(depth)}
        return metrics.registry.get_sample_value(f"forerun_draft_{name}_total", labels)

    assert value("judged_nodes", 1) == 2
    assert value("expected_hits", 2) == pytest.approx(0.75)
    assert (value("hits", 1), value("hits", 2), value("hits", 3)) == (1, 1, 0)


def test_a_correction_begins_slowly() -> None:
    assert Outcomes().correction == 1.0
    assert Outcomes(1, 0.9, 0).correction > 0.9

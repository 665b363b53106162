"""What a step costs is learned, forgotten and never falls with rows."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fixtures.scripted_target import ScriptedTarget, hash_next
from verify_server.costs import StepCosts

INFO = ScriptedTarget(hash_next(8)).info


def learned(*samples: tuple[float, float]) -> StepCosts:
    costs = StepCosts(INFO)
    for rows, ns in samples:
        costs.record(rows, ns, lean=False)
    return costs


def test_steps_of_different_sizes_must_have_been_seen() -> None:
    costs = StepCosts(INFO)
    costs.record(21, 310, lean=True)
    assert not costs.fitted
    costs.record(1, 110, lean=True)
    assert costs.fitted


def test_an_affine_cost_is_found_exactly_from_two_sizes() -> None:
    costs = learned((1, 110), (1, 110), (21, 310))
    for rows in (0, 1, 8, 40):
        assert costs.ns(rows) == pytest.approx(100 + 10 * rows)
    assert costs.rows_within(300) == pytest.approx(20)
    assert costs.rows_within(99) == 0


def test_one_size_says_nothing_about_the_price_of_a_row() -> None:
    costs = learned((256, 512), (256, 512))
    assert costs.ns(1) == pytest.approx(2), "the least that a row can cost"
    assert costs.rows_within(20) == pytest.approx(10)


def test_what_was_learned_outlasts_steps_of_one_size_and_follows_the_machine() -> None:
    costs = learned(*[(1, 110), (41, 510)] * 20, *[(1, 220)] * 100)
    assert costs.ns(1) == pytest.approx(220, rel=0.01)
    assert 100 < costs.ns(21) - costs.ns(1) < 400
    for _ in range(60):
        costs.record(1, 220, lean=False)
        costs.record(41, 1020, lean=False)
    assert costs.ns(21) == pytest.approx(200 + 20 * 21, rel=0.01)


def test_one_hiccup_is_forgotten() -> None:
    costs = learned(*[(1, 110), (41, 510)] * 20, (41, 50_000), *[(1, 110), (41, 510)] * 80)
    assert costs.ns(41) == pytest.approx(510, rel=0.01)


@pytest.mark.parametrize("prompts", [[], [(200, 2100)]])
def test_a_stalled_step_counts_as_a_few_at_most(prompts: list[tuple[float, float]]) -> None:
    costs = StepCosts(INFO)
    for _ in range(40):
        costs.record(4, 140, lean=True)
        for rows, ns in prompts:
            costs.record(rows, ns, lean=False)
    before = costs.lean_ns(4)
    costs.record(4, 1e6, lean=True)
    assert before < costs.lean_ns(4) < 1.25 * before


def test_a_machine_that_became_slow_is_soon_believed() -> None:
    costs = StepCosts(INFO)
    for _ in range(40):
        costs.record(4, 140, lean=True)
    for _ in range(60):
        costs.record(4, 100 * 140, lean=True)
    assert costs.lean_ns(4) == pytest.approx(100 * 140, rel=0.2)


def test_nothing_is_known_far_beyond_what_was_measured() -> None:
    costs = learned(*[(1, 100), (8, 100)] * 10)
    assert costs.rows_within(1000) == 16, "rows that cost nothing so far may cost all the more"
    assert StepCosts(INFO).rows_within(1) == math.inf


@given(st.lists(st.tuples(st.floats(1, 500), st.floats(0, 1e9)), min_size=1, max_size=60))
def test_never_falls_and_never_below_nothing(samples: list[tuple[float, float]]) -> None:
    costs = learned(*samples)
    ns = [costs.ns(rows) for rows in (0, 1, 2, 10, 100, 1000)]
    assert ns == sorted(ns)
    assert ns[0] >= -1e-6 * max(1.0, ns[-1])


def test_what_a_step_without_prompts_takes_is_remembered_while_there_are_none() -> None:
    costs = learned((4, 100), (40, 400))
    assert costs.lean_ns(4) == costs.ns(4)
    costs.record(4, 120, lean=True)
    for rows in range(30, 90):
        costs.record(rows, 10 * rows, lean=False)
    assert costs.ns(4) < 60
    assert costs.lean_ns(2) == costs.lean_ns(4) == 120
    assert costs.lean_ns(8) == pytest.approx(160, abs=2)


def test_rows_without_prompts_have_a_price_of_their_own() -> None:
    """Eight rows hide behind the reading of weights; those of prompts are all arithmetic."""
    costs = StepCosts(INFO)
    for _ in range(20):
        costs.record(1, 160, lean=True)
        costs.record(200, 4800, lean=False)
    dear = costs.decode_ns(9) - costs.decode_ns(1)
    for _ in range(20):
        costs.record(1, 160, lean=True)
        costs.record(9, 240, lean=True)
        costs.record(200, 4800, lean=False)
    found = costs.decode_ns(9) - costs.decode_ns(1)
    assert found == pytest.approx(80, abs=1)
    assert found < dear / 2
    assert costs.ns(200) == pytest.approx(4800, rel=0.1)


def test_a_row_behind_a_long_context_weighs_more() -> None:
    info = replace(INFO, weight_bytes=269_000_000, num_layers=30, hidden_size=576)
    costs = StepCosts(info)
    assert costs.row_weight(0) == 1
    # Measured on that model: 64 rows at 2048 took 1.97 times as long as at 128.
    assert costs.row_weight(2048) / costs.row_weight(128) == pytest.approx(1.95, abs=0.1)
    assert costs.plain_rows([0, 2048]) == 1 + costs.row_weight(2048)


def test_noise_does_not_mislead() -> None:
    rng = random.Random(5)
    costs = StepCosts(INFO)
    for _ in range(200):
        rows = rng.choice([1, 4, 12, 40])
        costs.record(rows, (100 + 10 * rows) * rng.uniform(0.9, 1.1), lean=False)
    assert costs.ns(12) == pytest.approx(220, rel=0.1)

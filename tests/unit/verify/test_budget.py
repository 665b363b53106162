"""Grants fall with load and with drafts that are not accepted, and rise again."""

from __future__ import annotations

import random

import pytest

from forerun.tree import Budget
from verify_server.budget import (
    FIRST_PAUSE,
    FIRST_SILENCE,
    FREE_ANSWER,
    LONGEST_PAUSE,
    LONGEST_PERIOD,
    LONGEST_SILENCE,
    NONE,
    PROBE,
    Pace,
    Usual,
    grant,
)

LIMIT = Budget(8, 8)


def granted(sessions: int = 1, remaining: int = 100, room: int = 100) -> Budget:
    return grant(LIMIT, row_budget=32, sessions=sessions, remaining=remaining, room=room)


@pytest.mark.parametrize(
    ("sessions", "nodes"), [(1, 8), (3, 8), (4, 7), (8, 3), (16, 1), (17, 0), (1000, 0)]
)
def test_rows_of_all_sessions_stay_within_the_row_budget(sessions: int, nodes: int) -> None:
    assert granted(sessions).nodes == nodes
    assert sessions * (nodes + 1) <= 32 or nodes == 0


def test_depth_leaves_place_for_the_bonus_token() -> None:
    assert granted(remaining=3) == Budget(8, 2)
    assert granted(remaining=1) == NONE


def test_slots_stay_within_the_context_limit() -> None:
    assert granted(room=3) == Budget(3, 3)
    assert granted(room=0) == NONE


def test_no_nodes_means_no_depth() -> None:
    assert grant(Budget(0, 8), row_budget=32, sessions=1, remaining=9, room=9) == NONE


def rounds_until_a_pause(pace: Pace) -> int:
    rounds = 0
    while pace.limit(LIMIT, 0) == LIMIT:
        pace.record_round(0, 4)
        rounds += 1
    return rounds


def pause(pace: Pace) -> int:
    """Plain steps until the next probe."""
    steps = 0
    while pace.limit(LIMIT, 0) == NONE:
        pace.record_plain_step()
        steps += 1
    return steps


def test_rejected_drafts_pause_within_eight_rounds_and_probe_ever_less() -> None:
    pace = Pace()
    assert rounds_until_a_pause(pace) <= 8
    pauses: list[int] = []
    for _ in range(7):
        pauses.append(pause(pace))
        assert pace.limit(LIMIT, 0) == PROBE
        pace.record_round(0, 2)
    assert pauses[0] == FIRST_PAUSE
    assert pauses == sorted(pauses)
    assert pauses[-1] == LONGEST_PAUSE


@pytest.mark.parametrize(
    ("sessions", "least", "most", "probe"), [(1, 10, 20, LIMIT), (4, 2, 6, PROBE)]
)
def test_rounds_that_take_more_time_than_they_are_worth_pause_though_much_is_accepted(
    sessions: int, least: int, most: int, probe: Budget
) -> None:
    """Sooner beside others, and with smaller probes: there a round costs them as well."""
    pace = Pace()

    def granted() -> Budget:
        return pace.limit(LIMIT, 0, sessions=sessions)

    rounds = 0
    while granted() == LIMIT and pace.pays:
        pace.record_round(2, 4, worth=-0.7, sessions=sessions)
        rounds += 1
    assert least <= rounds <= most
    for _ in range(20):
        assert pause(pace) > 0
        assert granted() == probe
        pace.record_round(1, 4, worth=-0.7, sessions=sessions)
    pause(pace)
    pace.record_round(4, 4, worth=1.7, sessions=sessions)
    assert granted() == LIMIT, "a very good probe leads back"


def test_rounds_that_vary_but_pay_hardly_ever_pause() -> None:
    """Half of the rounds cost a token and half bring two: worth half a token in the mean."""
    rng, pace, pauses = random.Random(7), Pace(), 0
    for _ in range(300):
        pauses += pause(pace)
        pays = rng.random() < 0.5
        pace.record_round(3 if pays else 0, 4, worth=2.0 if pays else -1.0)
    assert pauses < 60


def test_probes_of_all_sessions_come_in_the_same_steps() -> None:
    asked = []
    for begun in range(8):
        pace = Pace(gain=-0.1)
        for _ in range(4):
            pace.record_round(0, 2, worth=-1.0)
            while pace.paused_steps:
                pace.record_plain_step()
        asked.append({step for step in range(64) if pace.limit(LIMIT, begun + step) != NONE})
    assert {min(steps) + begun for begun, steps in enumerate(asked)} <= {0, 16}


def test_nobody_is_asked_where_rounds_usually_cost_more_than_they_bring() -> None:
    usual = Usual()
    for _ in range(100):
        usual.record(-0.5, sessions=16, hidden_states=True)
    assert not usual.pays(sessions=20, hidden_states=True)
    assert usual.pays(sessions=16, hidden_states=False), "n-grams take less time"
    assert usual.pays(sessions=8, hidden_states=True), "fewer share the engine"
    assert not usual.pays(sessions=64, hidden_states=True), "and more, who do so all the less"
    for _ in range(100):
        usual.record(1.0, sessions=17, hidden_states=True)
    assert usual.pays(sessions=16, hidden_states=True)


def test_a_session_alone_is_asked_whatever_it_was_worth() -> None:
    usual = Usual()
    for _ in range(100):
        usual.record(-0.5, sessions=1, hidden_states=True)
    assert usual.pays(sessions=1, hidden_states=True)
    assert usual.pays(sessions=2, hidden_states=True), "of those nothing is known"


def test_after_many_plain_steps_drafts_are_asked_for_again() -> None:
    usual = Usual()
    for _ in range(200):
        usual.record(-0.5, sessions=4, hidden_states=False)
    steps = 0
    while not usual.pays(sessions=4, hidden_states=False):
        usual.forget()
        steps += 1
    assert 1000 < steps < 10_000


def test_waiting_in_vain_pauses_for_longer() -> None:
    pace = Pace()
    while pace.limit(LIMIT, 0) == LIMIT:
        pace.record_silence()
    pauses: list[int] = []
    for _ in range(7):
        pauses.append(pause(pace))
        pace.record_silence()
    assert (pauses[0], pauses[-1]) == (FIRST_SILENCE, LONGEST_SILENCE)
    pause(pace)
    pace.record_round(0, 2)
    assert pause(pace) == LONGEST_PAUSE, "it answers again"


@pytest.mark.parametrize("accepted", [1, 2])
def test_one_accepted_probe_brings_drafting_back(accepted: int) -> None:
    pace = Pace()
    rounds_until_a_pause(pace)
    for _ in range(20):
        pause(pace)
        pace.record_round(0, 2)
    pause(pace)
    pace.record_round(accepted, 2)
    assert pace.limit(LIMIT, 0) == LIMIT


def test_probes_that_are_right_by_chance_buy_few_rounds() -> None:
    """One in four probes accepted and nothing else ever: pauses stay long."""
    pace = Pace()
    drafted = plain = 0
    for probe in range(1, 101):
        drafted += rounds_until_a_pause(pace)
        plain += pause(pace)
        pace.record_round(int(probe % 4 == 0), 2)
    assert drafted / plain < 0.04


def test_a_probe_is_no_larger_than_the_limit() -> None:
    pace = Pace(mean=0.0)
    assert pace.limit(Budget(1, 1), 0) == Budget(1, 1)
    assert pace.limit(NONE, 0) == NONE


def test_who_has_nothing_to_propose_is_asked_less_often_but_with_all_others() -> None:
    one, other = Pace(), Pace()

    def asked(pace: Pace) -> list[int]:
        return [step for step in range(8) if pace.limit(LIMIT, step) != NONE]

    one.record_nothing(answer=0.2)
    assert asked(one) == [0, 2, 4, 6]
    for _ in range(9):
        other.record_nothing(answer=0.2)
    assert asked(other) == list(range(0, 8, LONGEST_PERIOD))
    other.record_round(0, 2)
    assert asked(other) == list(range(8)), "it has something to propose again"


def test_an_answer_that_takes_no_time_is_always_asked_for() -> None:
    pace = Pace()
    for _ in range(9):
        pace.record_nothing(FREE_ANSWER / 2)
    assert all(pace.limit(LIMIT, step) == LIMIT for step in range(8))

"""Grants fall with load and with drafts that are not accepted, and rise again."""

from __future__ import annotations

import pytest

from forerun.tree import Budget
from verify_server.budget import FIRST_PAUSE, LONGEST_PAUSE, NONE, Pace, grant

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


def test_rejected_drafts_pause_within_eight_rounds_and_probe_ever_less() -> None:
    pace = Pace()
    rounds = 0
    while pace.drafts:
        pace.record_round(0, 4)
        rounds += 1
    assert rounds <= 8
    pauses: list[int] = []
    for _ in range(7):
        steps = 0
        while not pace.drafts:
            pace.record_plain_step()
            steps += 1
        pauses.append(steps)
        pace.record_round(0, 4)
    assert pauses[0] == FIRST_PAUSE
    assert pauses == sorted(pauses)
    assert pauses[-1] == LONGEST_PAUSE


def test_one_accepted_probe_brings_drafting_back() -> None:
    pace = Pace()
    while pace.drafts:
        pace.record_round(0, 4)
    while not pace.drafts:
        pace.record_plain_step()
    pace.record_round(4, 4)
    assert pace.drafts
    assert pace.pause == FIRST_PAUSE

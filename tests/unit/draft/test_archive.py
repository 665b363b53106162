"""Outputs of earlier sessions: what is found in them, and that they keep to their room."""

from __future__ import annotations

import random

from draft_server.drafters.archive import GRAM, MAX_OUTPUT, MAX_PLACES, Archive
from draft_server.drafters.ngram import NgramDrafter
from forerun.tree import Budget

BUDGET = Budget(8, 8)


def test_a_session_is_drafted_from_what_another_wrote() -> None:
    drafter = NgramDrafter(archive=Archive(1000))
    first = drafter.open([100, 101])
    drafter.advance(first, list(range(20)))
    other = drafter.open([200, 201])
    drafter.advance(other, [5, 6, 7, 8])
    assert drafter.draft([(other, BUDGET)])[0].num_nodes == 0, "the first one has not ended"
    drafter.close(first)
    (tree,) = drafter.draft([(other, BUDGET)])
    assert tree.token_ids == (8, 9, 10, 11, 12, 13, 14, 15, 16)
    drafter.advance(other, [9, 77])
    assert drafter.draft([(other, BUDGET)])[0].num_nodes == 0, "it went another way"


def test_prompts_are_not_kept_and_nothing_is_kept_twice() -> None:
    archive = Archive(1000)
    drafter = NgramDrafter(archive=archive)
    state = drafter.open(list(range(50)))
    drafter.advance(state, list(range(100, 110)))
    drafter.close(state)
    drafter.close(state)
    assert archive.size == 10
    assert archive.following(range(10, 20)) == ()
    assert len(archive.following(range(100, 105))) == 1


def test_the_longer_match_wins_wherever_it_lies() -> None:
    drafter = NgramDrafter(min_probability=0.01, archive=Archive(1000))
    old = drafter.open([0])
    drafter.advance(old, [1, 2, 3, 4, 5, 6, 99, 98])
    drafter.close(old)
    state = drafter.open([5, 6, 50, 51, 1, 2, 3, 4, 5, 6])
    (tree,) = drafter.draft([(state, BUDGET)])
    assert tree.token_ids[1] == 99, "six tokens match there, two in the prompt"
    assert 50 in tree.token_ids


def test_the_oldest_outputs_go_first_and_leave_nothing() -> None:
    chance = random.Random(0)
    archive = Archive(500)
    outputs = [[chance.randrange(30) for _ in range(chance.randrange(200))] for _ in range(200)]
    for output in outputs:
        archive.add(output)
        assert archive.size <= 500
    kept, size = [], 0
    for output in reversed(outputs):
        if len(output) > GRAM:
            size += len(output)
            if size > 500:
                break
            kept.append(tuple(output))
    grams = {o[end - GRAM : end] for o in kept for end in range(GRAM, len(o))}
    assert set(archive._places) == grams
    found = {o for places in archive._places.values() for o, _ in places}
    assert found <= set(kept)
    assert all(len(places) <= MAX_PLACES for places in archive._places.values())


def test_the_latest_places_are_kept_and_an_output_is_cut() -> None:
    archive = Archive(100_000)
    for last in range(20):
        archive.add([1, 2, 3, 4, last])
    following = [output[place] for output, place in archive.following([1, 2, 3, 4])]
    assert following == list(range(19, 19 - MAX_PLACES, -1))
    archive.add([7] * (3 * MAX_OUTPUT))
    assert archive.size == 20 * 5 + MAX_OUTPUT
    small = Archive(10)
    small.add(range(100))
    assert small.size == 10

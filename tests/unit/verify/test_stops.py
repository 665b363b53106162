"""Stops inside an accepted block, against one token at a time (field reports on multi-token
blocks: text after the stop, wrong finish reason)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verify_server.stops import FinishReason, StopRule

STOP = 99
BLOCK = [10, 11, STOP, 20, 21, 22]


def rule(max_emitted: int = 100, max_committed: int = 1000) -> StopRule:
    return StopRule(frozenset({STOP}), max_emitted, max_committed)


@pytest.mark.parametrize(
    ("max_tokens", "count", "reason"),
    [
        (5, 3, FinishReason.STOP),
        (3, 3, FinishReason.STOP),  # the stop id is the last allowed token: it stopped
        (2, 2, FinishReason.LENGTH),
        (100, 3, FinishReason.STOP),
    ],
)
def test_cut_at_stop_or_length(max_tokens: int, count: int, reason: FinishReason) -> None:
    assert rule(max_tokens).cut(BLOCK, emitted=0, committed_len=7) == (count, reason)


def test_context_limit_cuts_as_well() -> None:
    assert rule(max_committed=9).cut(BLOCK, emitted=0, committed_len=7) == (2, FinishReason.LENGTH)


def test_block_without_stop_goes_on() -> None:
    assert rule().cut([1, 2, 3], emitted=0, committed_len=7) == (3, None)


@given(
    block=st.lists(st.sampled_from([1, 2, STOP]), min_size=1, max_size=8),
    max_emitted=st.integers(1, 9),
    emitted=st.integers(0, 8),
    max_committed=st.integers(8, 20),
)
def test_equals_one_token_at_a_time(
    block: list[int], max_emitted: int, emitted: int, max_committed: int
) -> None:
    if emitted >= max_emitted:
        return
    limits = rule(max_emitted, max_committed)
    expected: tuple[int, FinishReason | None] = (len(block), None)
    for index, token_id in enumerate(block):
        count, reason = limits.cut([token_id], emitted + index, 7 + index)
        assert count == 1
        if reason is not None:
            expected = (index + 1, reason)
            break
    assert limits.cut(block, emitted, 7) == expected

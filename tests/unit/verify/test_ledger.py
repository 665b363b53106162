"""What drafting costs beyond its rounds is found from the tokens and the time of whole steps."""

from __future__ import annotations

import pytest

from verify_server.ledger import CYCLE, MOST_UNTOLD, PLAIN_STEPS, Ledger

PLAIN_MS = 20.0


def run(
    ledger: Ledger, steps: int, *, asked: int, tokens: int, ms: float, told: float = 0.0
) -> float:
    """Steps of eight sessions; what is untold afterwards."""
    for _ in range(steps):
        ledger.record(
            sessions=8,
            asked=asked,
            hidden_states=True,
            tokens=tokens,
            ns=ms * 1e6,
            plain_ns=PLAIN_MS * 1e6,
            told=told,
        )
    return ledger.untold(sessions=8, hidden_states=True)


def test_rounds_that_tell_all_have_nothing_untold() -> None:
    ledger = Ledger()
    run(ledger, 50, asked=0, tokens=8, ms=PLAIN_MS)
    # A quarter longer for the nodes of all: they cost two tokens, and six were accepted.
    untold = run(ledger, 200, asked=8, tokens=14, ms=1.25 * PLAIN_MS, told=4.0)
    assert untold == pytest.approx(0.0, abs=0.01)


def test_missed_steps_and_slower_ones_are_charged_to_all_that_are_asked() -> None:
    ledger = Ledger()
    run(ledger, 50, asked=0, tokens=8, ms=PLAIN_MS)
    # Three of four miss this step, which takes longer though it has fewer rows.
    untold = run(ledger, 400, asked=4, tokens=5, ms=1.25 * PLAIN_MS, told=0.0)
    assert untold == pytest.approx((5 - 8 * 1.25) / 4, abs=0.01)
    assert ledger.untold(sessions=9, hidden_states=True) == untold
    assert ledger.untold(sessions=4, hidden_states=True) == 0
    assert ledger.untold(sessions=8, hidden_states=False) == 0


def test_a_machine_that_is_slower_for_all_steps_is_not_the_fault_of_drafts() -> None:
    ledger = Ledger()
    run(ledger, 100, asked=0, tokens=8, ms=1.4 * PLAIN_MS)
    untold = run(ledger, 400, asked=8, tokens=8, ms=1.4 * PLAIN_MS)
    assert untold == pytest.approx(0.0, abs=0.02)


def test_one_pause_of_the_machine_says_little() -> None:
    ledger = Ledger()
    run(ledger, 50, asked=0, tokens=8, ms=PLAIN_MS)
    assert abs(run(ledger, 1, asked=8, tokens=8, ms=5000.0)) < 0.05
    assert abs(run(ledger, 10_000, asked=1, tokens=0, ms=5000.0)) <= MOST_UNTOLD


def test_some_steps_are_plain_where_several_sessions_decode() -> None:
    plain = [Ledger.wants_plain(step, 2) for step in range(10 * CYCLE)]
    assert sum(plain) == 10 * PLAIN_STEPS
    assert not any(Ledger.wants_plain(step, 1) for step in range(10 * CYCLE))

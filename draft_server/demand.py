"""Whether a new session gets the target's hidden states.

They are computed on, sent and cached for every token, drafted for or not. Where a verify server has
so many sessions that it grants next to no nodes, a head never earns what that costs, and n-grams,
which need none, draft alone.
"""

from __future__ import annotations

# With fewer sessions the verify server has time for trees, whatever the last ones came to.
MANY_SESSIONS = 4
# A probe has two nodes: a grant of more says that trees pay.
PROBE_NODES = 2
# A grant's weight, and the share of larger grants below which a head is not worth it.
GRANT_WEIGHT = 1 / 64
WORTHWHILE_SHARE = 0.2
# Of the sessions that would get none one in so many does all the same: only they tell.
TRIAL = 8


class Demand:
    """What verify servers ask of sessions that have hidden states. For the event loop."""

    def __init__(self) -> None:
        self._share = 1.0
        self._refused = 0

    def record(self, nodes: int) -> None:
        """Counts the grant of a round of such a session."""
        self._share += GRANT_WEIGHT * ((nodes > PROBE_NODES) - self._share)

    def wants_hidden_states(self, sessions: int) -> bool:
        """Whether a new session should have them, beside `sessions` others."""
        if sessions < MANY_SESSIONS or self._share >= WORTHWHILE_SHARE:
            return True
        self._refused += 1
        return self._refused % TRIAL == 0

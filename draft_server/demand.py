"""Whether a new session gets the target's hidden states.

They are computed on, sent and cached for every token, drafted for or not. Where a verify server has
so many sessions that it grants next to no nodes, a head never earns what that costs, and n-grams,
which need none, draft alone.
"""

from __future__ import annotations

# A probe has two nodes: a grant of more says that trees pay.
PROBE_NODES = 2
# A grant's weight, and the share of larger grants below which a head is not worth it.
GRANT_WEIGHT = 1 / 64
WORTHWHILE_SHARE = 0.2
# Of the sessions that would get none one in so many does all the same: only they tell.
TRIAL = 16


class Demand:
    """What verify servers ask of sessions that have hidden states, by how many sessions there are.
    For the event loop.

    blind: whether sessions without them are drafted for as well.
    """

    def __init__(self, *, blind: bool = True) -> None:
        self._first_share = 0.0 if blind else 1.0
        self._shares: dict[int, float] = {}
        self._refused = 0

    def record(self, nodes: int, *, sessions: int) -> None:
        """Counts the grant of a round of such a session, one of so many."""
        share = self._share(sessions)
        grants_more = nodes > PROBE_NODES
        self._shares[sessions.bit_length()] = share + GRANT_WEIGHT * (grants_more - share)

    def wants_hidden_states(self, *, beside: int) -> bool:
        """Whether a new session should have them, beside so many others. Alone it always should:
        then the verify server has time for trees, whatever the last ones came to."""
        if beside == 0 or self._share(beside + 1) >= WORTHWHILE_SHARE:
            return True
        self._refused += 1
        return self._refused % TRIAL == 0

    def _share(self, sessions: int) -> float:
        """Where nothing is known of so many, what is known of the next lower number: at first that
        n-grams will do, where there are any. A dozen sessions that all have hidden states before
        any round told what they are worth lose a fifth of their speed on two shared processors."""
        for load in range(sessions.bit_length(), 1, -1):
            if load in self._shares:
                return self._shares[load]
        return self._first_share

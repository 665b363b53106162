"""What drafting costs beyond what its rounds tell: steps that sessions miss while their tree is on
its way, and steps that take longer while a draft server computes on the same cores.

Not told by anyone, but measured: the tokens of a step and the time since the end of the one before
it, next to the time of steps for which nothing was asked. A machine is faster and slower from one
minute to the next, so there are some of these all the time. Knows no session and no tree.
"""

from __future__ import annotations

# One session alone misses no step of others, and plain steps would cost it most.
LEAST_SESSIONS = 2
# The last three of 32 steps are plain: in the first one trees may still be on their way.
CYCLE = 32
PLAIN_STEPS = 3
# Weights of the newest step: of those without drafts, and of those that all sessions drafted for.
PLAIN_WEIGHT = 1 / 16
UNTOLD_WEIGHT = 1 / 32
# Tokens a round that are believed, at most. A pause of the machine is no more than a step.
MOST_UNTOLD = 2.0
LONGEST = 1.5


class Ledger:
    """Keeps account by how many sessions decode, and apart for those with hidden states, whose
    drafts take longer."""

    def __init__(self) -> None:
        self._plain: dict[int, float] = {}
        self._untold: dict[tuple[int, bool], float] = {}

    @staticmethod
    def wants_plain(step: int, sessions: int) -> bool:
        """Whether nothing should be asked for after the step of that number."""
        return sessions >= LEAST_SESSIONS and step % CYCLE >= CYCLE - PLAIN_STEPS

    def record(
        self,
        *,
        sessions: int,
        asked: int,
        hidden_states: bool,
        tokens: int,
        ns: float,
        plain_ns: float,
        told: float,
    ) -> None:
        """Counts a step that was for decoding sessions alone.

        sessions: those that decode, in this step or not; asked: those of them whose draft is asked
        for a tree, or has sent it; hidden_states: whether most of these have them; tokens: what the
        step emitted; ns: since the end of the step before it; plain_ns: what it is thought to take
        without drafts; told: what its rounds alone seem to be worth, in tokens.
        """
        if sessions < LEAST_SESSIONS:
            return
        load, times = sessions.bit_length(), min(ns / plain_ns, LONGEST)
        plain = self._plain.get(load, 1.0)
        if asked == 0:
            self._plain[load] = plain + PLAIN_WEIGHT * (times - plain)
            return
        worth = tokens - sessions * times / plain
        untold = min(max((worth - told) / asked, -MOST_UNTOLD), MOST_UNTOLD)
        known = self.untold(sessions=sessions, hidden_states=hidden_states)
        weight = UNTOLD_WEIGHT * asked / sessions
        self._untold[load, hidden_states] = known + weight * (untold - known)

    def untold(self, *, sessions: int, hidden_states: bool) -> float:
        """What a round is worth beyond what it tells, in tokens: mostly below 0."""
        return self._untold.get((sessions.bit_length(), hidden_states), 0.0)

"""How large a tree the verifier wants next. Output never depends on it; speed does.

Two rules. Load: the rows of one step stay near a row budget, so a session among many is granted
fewer nodes, down to none. Pace: a session whose drafts are not accepted decodes plainly for a
while, then tries again, less and less often.
"""

from __future__ import annotations

from dataclasses import dataclass

from forerun.tree import Budget

NONE = Budget(nodes=0, depth=0)

# A tree of 8 nodes costs up to 1.3 plain steps, so below this mean a round is a loss.
WORTHWHILE_MEAN = 0.15
# A new round's weight: seven rounds without an accepted node bring the mean from 1 below 0.15.
ROUND_WEIGHT = 0.25
FIRST_PAUSE = 16
LONGEST_PAUSE = 256


def grant(limit: Budget, *, row_budget: int, sessions: int, remaining: int, room: int) -> Budget:
    """The budget of one session's next round.

    limit: the most that the server grants; row_budget: rows that one step should have at most,
    shared by `sessions` decoding sessions; remaining: tokens that the session may still emit (the
    bonus token is one of them); room: cache slots that the context limit leaves behind the root.
    """
    nodes = min(limit.nodes, row_budget // max(sessions, 1) - 1, room)
    depth = min(limit.depth, remaining - 1, nodes)
    return Budget(nodes, depth) if depth > 0 else NONE


@dataclass(slots=True)
class Pace:
    """Whether drafting pays for one session: a moving mean of accepted nodes a round."""

    mean: float = 1.0
    pause: int = FIRST_PAUSE
    paused_steps: int = 0

    @property
    def drafts(self) -> bool:
        """Whether the next round should be drafted for."""
        return self.paused_steps == 0

    def record_round(self, accepted: int) -> None:
        """Counts a round that was drafted for; a tree that came too late has 0 accepted nodes."""
        self.mean += ROUND_WEIGHT * (accepted - self.mean)
        if self.mean < WORTHWHILE_MEAN:
            self.paused_steps = self.pause
            self.pause = min(2 * self.pause, LONGEST_PAUSE)
        else:
            self.pause = FIRST_PAUSE

    def record_plain_step(self) -> None:
        """Counts a step that was not drafted for."""
        self.paused_steps = max(0, self.paused_steps - 1)

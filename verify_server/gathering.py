"""When a step waits for trees that are about to come. Output never depends on it; speed does.

A step reads every weight once, however many sessions it serves. Sessions whose trees arrive while
the step of others runs would take turns with them for good, each served by every other step. So a
step is held back for trees that usually come within a part of its own length: from then on the
verdicts of all sessions leave together, and so do their next trees. Holding delays everybody, and a
session that misses a step loses one token: a few trees of many are waited for less long.
"""

from __future__ import annotations

from collections.abc import Sequence

from verify_server.costs import StepCosts
from verify_server.sessions import Session

# Two groups that take turns are served at half the rate, so half a step is well spent on joining:
# as much of a step, at most, as there are trees among the sessions that would come by then.
LONGEST_HOLD = 0.5
# A tree that has not come in so many times its usual time is not waited for.
LATE = 2.0


def hold_until_ns(
    decoding: Sequence[Session], costs: StepCosts, *, prompts: bool, now_ns: int, free_ns: int
) -> int:
    """Until when all that is ready waits for trees that are about to come; 0: it does not.

    prompts: whether rows of prompts are ready as well; free_ns: when the engine came free, at the
    end of the last step.
    """
    ready = [session for session in decoding if session.ready_ns <= now_ns]
    if len(ready) == len(decoding) or not (ready or prompts):
        return 0
    since_ns = free_ns if prompts else max(free_ns, min(s.ready_ns for s in ready))
    plain_rows = costs.plain_rows(len(session.committed) for session in decoding)
    step_ns = costs.lean_ns(plain_rows)
    awaited = [session for session in decoding if session.ready_ns > now_ns]
    awaited.sort(key=lambda session: session.round_began_ns + session.answer_ns)
    until_ns, coming = 0.0, 0
    for session in awaited:
        expected_ns = session.round_began_ns + session.answer_ns
        late_ns = session.round_began_ns + LATE * session.answer_ns
        if late_ns <= now_ns:
            continue
        coming += 1
        latest_ns = since_ns + min(LONGEST_HOLD, coming / len(decoding)) * step_ns
        if expected_ns <= latest_ns:
            until_ns = max(until_ns, min(late_ns, latest_ns))
    return int(until_ns) if until_ns > now_ns else 0

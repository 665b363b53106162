"""How large a tree the verifier wants next. Output never depends on it; speed does.

Three rules. Load: the rows of one step stay near a row budget, so a session among many is granted
fewer nodes, down to none (`verify_server.sizing` lowers the limit to what pays). Pace: a session
whose drafts are not accepted decodes plainly and probes now and then with a tree of two nodes, less
and less often, until a probe is accepted; one whose draft has nothing to propose is asked in every
second, then every fourth step, until it has. Worth: a session whose rounds take more time than
their tokens are worth (`verify_server.sizing.worth`) pauses likewise: drafting may cost what it
likes elsewhere, but waiting for it is time. Where that is so for most sessions, none is asked.
"""

from __future__ import annotations

from dataclasses import dataclass

from forerun.tree import Budget

NONE = Budget(nodes=0, depth=0)

# A tree of 8 nodes costs up to 1.3 plain steps, so below this mean a round is a loss.
WORTHWHILE_MEAN = 0.15
# A new round's weight: seven rounds without an accepted node bring the mean from 1 below 0.15, and
# one accepted probe brings it back above.
ROUND_WEIGHT = 0.25
# For drafts that were not accepted. Three rows cost little more than one; one such step in 33 is
# lost in the noise, and what can be drafted again is found within as many tokens.
PROBE = Budget(nodes=2, depth=2)
FIRST_PAUSE = 4
LONGEST_PAUSE = 32
# Waiting in vain costs as much as several steps.
FIRST_SILENCE = 16
LONGEST_SILENCE = 256

# The worth of rounds is averaged over about as many as eight. Below 0 drafting costs time; a good
# probe leads out of the lowest that it can fall to, and six bad rounds down from the highest.
GAIN_WEIGHT = 1 / 8
# Over more for a session alone: rounds of one session differ by more tokens than they are worth in
# the mean, and where nobody else is held up a pause for nothing costs more than a late one.
GAIN_WEIGHT_ALONE = 1 / 32
FIRST_GAIN = 0.5
LEAST_GAIN, MOST_GAIN = -0.05, 1.0
# A session alone finds out for itself.
MANY_SESSIONS = 2
# A round's weight in what rounds are usually worth, and how much of that a step forgets: only
# drafts tell, so after some minutes of plain steps there are some again.
USUAL_WEIGHT = 1 / 64
FORGOTTEN = 1 / 4096
# What hidden states cost whether or not anything is asked, in tokens a round: those of the prompt
# and of every token are sent and read. Eight sessions of the default model that have them, on
# processors which both servers share, are 8 % slower without a single tree.
HIDDEN_PRICE = 0.45

# Asking takes time where there is nothing to propose; what can be copied is longer than so many
# steps. Sessions are asked in the same steps: the others are held up by one as much as by all.
LONGEST_PERIOD = 4
LONGEST_PROBE_PERIOD = 16
# An answer that takes less of a step than this may as well be asked for in every step.
FREE_ANSWER = 0.05

# What is thought of a draft's nodes before any was seen, and how many nodes that counts for.
FIRST_RATE = 0.75
FIRST_TRIES = 4.0
# A round leaves that much of what was learned before it, a plain step that much of what differs
# from the first thought: where nothing is drafted, nothing is known after a while.
ROUND_KEPT = 0.9
PLAIN_KEPT = 0.98


def grant(limit: Budget, *, row_budget: int, sessions: int, remaining: int, room: int) -> Budget:
    """The budget of one session's next round.

    limit: the most that the session is granted; row_budget: rows that one step should have at most,
    shared by `sessions` decoding sessions; remaining: tokens that the session may still emit (the
    bonus token is one of them); room: cache slots that the context limit leaves behind the root.
    """
    nodes = min(limit.nodes, row_budget // max(sessions, 1) - 1, room)
    depth = min(limit.depth, remaining - 1, nodes)
    return Budget(nodes, depth) if depth > 0 else NONE


@dataclass(slots=True)
class Pace:
    """Whether drafting pays for one session: a moving mean of accepted nodes a round, and how many
    of the nodes that were tried, one after the other down the accepted path, were accepted.

    period: the draft is asked in every step whose number this divides. gain: a moving mean of what
    a round was worth, in tokens.
    """

    mean: float = 1.0
    pause: int = FIRST_PAUSE
    paused_steps: int = 0
    period: int = 1
    gain: float = FIRST_GAIN
    accepted: float = FIRST_RATE * FIRST_TRIES
    tries: float = FIRST_TRIES

    def limit(self, limit: Budget, step: int, *, sessions: int = 1) -> Budget:
        """The most that the next round is granted, where the server grants `limit` at most. step:
        the number of the step that ended; sessions: that share the engine, this one included."""
        if self.paused_steps or step % self.period:
            return NONE
        if self.pays or (sessions < MANY_SESSIONS and self.mean >= WORTHWHILE_MEAN):
            # Where rounds take too long a probe should be a whole one: most of the time goes by
            # before the first node, and a smaller tree looks worse than what it stands for. Beside
            # others its nodes would cost too much.
            return limit
        return Budget(min(limit.nodes, PROBE.nodes), min(limit.depth, PROBE.depth))

    @property
    def pays(self) -> bool:
        """Whether rounds are worth their time, as far as is known."""
        return self.mean >= WORTHWHILE_MEAN and self.gain >= 0

    @property
    def rate(self) -> float:
        """The chance that a node is accepted if its parent is."""
        return self.accepted / self.tries

    def record_round(
        self,
        accepted: int,
        depth: int,
        worth: float = FIRST_GAIN,
        *,
        sessions: int = 1,
        pausing: bool = True,
    ) -> None:
        """Counts a round whose tree, of that depth, was verified. worth: see `sizing.worth`;
        sessions: see `limit`; pausing: whether the session is to pause where it does not pay,
        otherwise a round alone ends a pause."""
        self.period = 1
        weight = GAIN_WEIGHT if sessions >= MANY_SESSIONS else GAIN_WEIGHT_ALONE
        gain = self.gain + weight * (worth - self.gain)
        self.gain = min(max(gain, LEAST_GAIN), MOST_GAIN)
        self.accepted = ROUND_KEPT * self.accepted + accepted
        self.tries = ROUND_KEPT * self.tries + min(accepted + 1, depth)
        if pausing:
            self._record(accepted, FIRST_PAUSE, LONGEST_PAUSE)
        else:
            self.mean, self.pause = max(self.mean, WORTHWHILE_MEAN), FIRST_PAUSE
            self.gain = max(self.gain, 0.0)

    def record_nothing(self, answer: float, worth: float = 0.0) -> None:
        """Counts a round for which there was nothing to propose. answer: how long it took to say
        so, in steps; worth: what that cost, in tokens, 0 or less."""
        self.gain = max(self.gain + GAIN_WEIGHT * worth, LEAST_GAIN)
        if answer > FREE_ANSWER:
            self.period = min(2 * self.period, LONGEST_PERIOD)

    def record_silence(self) -> None:
        """Counts a round that was waited for in vain."""
        self._record(0, FIRST_SILENCE, LONGEST_SILENCE)

    def record_plain_step(self) -> None:
        """Counts a step that was not drafted for."""
        self.paused_steps = max(0, self.paused_steps - 1)
        self.accepted += (1 - PLAIN_KEPT) * (FIRST_RATE * FIRST_TRIES - self.accepted)
        self.tries += (1 - PLAIN_KEPT) * (FIRST_TRIES - self.tries)

    def _record(self, accepted: int, first: int, longest: int) -> None:
        self.mean += ROUND_WEIGHT * (accepted - self.mean)
        if not self.pays:
            self.paused_steps = min(max(self.pause, first), longest)
            self.pause = min(2 * self.paused_steps, longest)
            # Probes of all sessions in the same steps: one of them holds the others up like many.
            self.period = min(self.paused_steps // 2, LONGEST_PROBE_PERIOD)
        elif accepted:
            # Halved, not forgotten: a probe that is right by chance buys few rounds.
            self.pause = max(FIRST_PAUSE, self.pause // 2)


class Usual:
    """What rounds are usually worth, with hidden states and without, by how many sessions decode:
    a head takes longer than n-grams, and the time of an engine that many share is dearer."""

    def __init__(self) -> None:
        self._worth: dict[tuple[bool, int], float] = {}

    def record(self, worth: float, *, sessions: int, hidden_states: bool) -> None:
        """Counts a round in a step of that many decoding sessions."""
        usual = self._usual(sessions.bit_length(), hidden_states)
        self._worth[hidden_states, sessions.bit_length()] = usual + USUAL_WEIGHT * (worth - usual)

    def forget(self) -> None:
        """Counts a step."""
        for kind, worth in self._worth.items():
            self._worth[kind] = worth + FORGOTTEN * (FIRST_GAIN - worth)

    def pays(self, *, sessions: int, hidden_states: bool) -> bool:
        """Whether anything is to be asked of a session, one of so many."""
        if sessions < MANY_SESSIONS:
            return True
        price = HIDDEN_PRICE if hidden_states else 0.0
        return self._usual(sessions.bit_length(), hidden_states) >= price

    def _usual(self, load: int, hidden_states: bool) -> float:
        """Where nothing is known of a load, what is known of the next lower one: rounds are worth
        no more beside more sessions."""
        while load >= MANY_SESSIONS.bit_length():
            if (worth := self._worth.get((hidden_states, load))) is not None:
                return worth
            load -= 1
        return FIRST_GAIN

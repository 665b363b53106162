"""One session's state: what is committed, what is cached, and which round is on.

Knows nothing of other sessions, of pages beyond its own, or of the engine.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field
from enum import Enum

from forerun.engine.interface import Sequence
from forerun.stats import SessionStats
from forerun.tree import Budget, Tree
from verify_server.budget import NONE, Pace
from verify_server.events import Outcome, TreeArrived
from verify_server.stops import FinishReason, StopRule

# The weight of the newest of a session's times to answer.
ANSWER_WEIGHT = 0.25


class Phase(Enum):
    """Where a session is. It waits for pages first, and again after it had to give them back."""

    WAITING = "waiting"
    PREFILLING = "prefilling"
    DECODING = "decoding"


class Dropped(Enum):
    """Why a tree is dropped and counted, never applied."""

    UNKNOWN_SESSION = "unknown_session"
    ROUND = "round"
    COMMITTED_LEN = "committed_len"
    DUPLICATE = "duplicate"
    ASSUMED = "assumed"
    UNWANTED = "unwanted"
    PREEMPTED = "preempted"
    NO_PAGES = "no_pages"
    MALFORMED = "malformed"


@dataclass(slots=True, eq=False)
class Session:
    """A generation.

    committed: prompt and output tokens that are final. round: the round that is on: 0 until the
    first token, then 1 and one more after each verdict. tree: the valid tree of that round, once it
    came. due_ns: when the round is decoded plainly if no tree comes. answer_ns: how long after the
    beginning of a round its tree comes, a moving mean; 0 before the first. sequence: None while it
    holds no pages. arrival: order of opening; the youngest has the highest.
    """

    stream: int
    number: int
    arrival: int
    prompt_len: int
    committed: list[int]
    rule: StopRule
    drafting: bool
    patience_ns: int
    deadline_ns: int | None
    taps: tuple[int, ...]
    received_ns: int

    phase: Phase = Phase.WAITING
    sequence: Sequence | None = None
    round: int = 0
    tree: Tree | None = None
    tree_received_ns: int = 0
    granted: Budget = NONE
    due_ns: int = 0
    answer_ns: float = 0.0
    last_outcome: Outcome | None = None
    prompt_hidden_sent: int = 0
    stats: SessionStats = field(default_factory=SessionStats)
    pace: Pace = field(default_factory=Pace)

    @property
    def key(self) -> tuple[int, int]:
        return self.stream, self.number

    @property
    def emitted(self) -> int:
        """Output tokens."""
        return len(self.committed) - self.prompt_len

    @property
    def prefill_len(self) -> int:
        """Tokens that must be cached before decoding: the prompt, and all output but the root."""
        return max(self.prompt_len, len(self.committed) - 1)

    @property
    def reusable_len(self) -> int:
        """First committed tokens whose KV may come from a prefix cache: not the last one before
        decoding, since its row says what is next, and not those whose hidden states are owed."""
        if self.taps and self.round == 0:
            return min(self.prompt_hidden_sent, self.prefill_len - 1)
        return self.prefill_len - 1

    @property
    def ready_ns(self) -> int:
        """When a decoding session can take its next step."""
        return self.tree_received_ns if self.tree else self.due_ns

    @property
    def round_began_ns(self) -> int:
        """When a round began whose tree is awaited, or came."""
        return self.due_ns - self.patience_ns

    @property
    def waited_ns(self) -> int:
        """From the beginning of the round to its tree."""
        return self.tree_received_ns - self.round_began_ns

    @property
    def room(self) -> int:
        """Cache slots that the context limit leaves behind the root."""
        return self.rule.max_committed - len(self.committed)

    def refusal(self, event: TreeArrived) -> Dropped | None:
        """Why a tree is not for the round that is on, or None if it is."""
        if event.round != self.round or self.round == 0:
            return Dropped.ROUND
        if event.committed_len != len(self.committed):
            return Dropped.COMMITTED_LEN
        if event.assumed is not None and event.assumed != self.last_outcome:
            return Dropped.ASSUMED
        if self.phase is not Phase.DECODING:
            return Dropped.PREEMPTED
        if self.tree is not None:
            return Dropped.DUPLICATE
        if self.granted.nodes == 0:
            return Dropped.UNWANTED
        return None

    def take(self, tree: Tree, received_ns: int) -> None:
        """The tree of the round that is on."""
        self.tree = tree
        self.tree_received_ns = received_ns
        weight = ANSWER_WEIGHT if self.answer_ns else 1.0
        self.answer_ns += weight * (self.waited_ns - self.answer_ns)

    def emit(self, block: SequenceOf[int]) -> tuple[int, FinishReason | None]:
        """Commits the tokens of `block` up to where the session ends: how many, and why it ends."""
        count, reason = self.rule.cut(block, self.emitted, len(self.committed))
        self.committed.extend(block[:count])
        return count, reason

    def begin_round(self, granted: Budget, now_ns: int) -> None:
        """The next round: a tree within `granted` is awaited for the session's patience."""
        self.round += 1
        self.tree = None
        self.granted = granted
        self.due_ns = now_ns + (self.patience_ns if granted.nodes else 0)

    def yield_pages(self) -> None:
        """The session has lost its pages. The round that is on is decoded plainly once the
        committed tokens are cached again, whatever tree came or comes for it."""
        self.phase = Phase.WAITING
        self.sequence = None
        self.tree = None
        self.granted = NONE

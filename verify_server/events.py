"""What goes into the scheduler and what comes out: plain objects, no messages.

Sessions are numbered by their draft server, so a session's name is its stream and its number.
Times are nanoseconds of the scheduler's clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from forerun.errors import ForerunError
from forerun.stats import SessionStats
from forerun.tree import Budget, Tree, TreeFields
from verify_server.stops import FinishReason


@dataclass(frozen=True, slots=True)
class OpenSession:
    """A session to open, as it came; `verify_server.admission` validates it. Fields as in Open."""

    stream: int
    session: int
    prompt_token_ids: Sequence[int]
    max_tokens: int
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    deadline_ms: int = 0
    drafting: bool = False
    patience_us: int = 0
    hidden_taps: Sequence[int] = ()
    received_ns: int = 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a round ended: its last accepted node (0 is the root) and the bonus token."""

    round: int
    node: int
    bonus_token_id: int


class OfferedTree(TreeFields, Protocol):
    """A tree that may be large and wrong: nothing of it is walked before `validate` has passed."""

    def first(self, nodes: int) -> Tree:
        """The root and the first `nodes` nodes of a valid tree."""
        ...


@dataclass(frozen=True, slots=True)
class TreeArrived:
    """A tree for one round of a session, not validated yet."""

    stream: int
    session: int
    round: int
    committed_len: int
    tree: OfferedTree
    assumed: Outcome | None = None
    received_ns: int = 0


@dataclass(frozen=True, slots=True)
class CancelSession:
    """A session to drop."""

    stream: int
    session: int


@dataclass(frozen=True, slots=True)
class CloseStream:
    """A stream that ended: all of its sessions go, and nothing is sent for them."""

    stream: int


@dataclass(frozen=True, slots=True)
class Refuse:
    """From now on every new session is refused with `error`."""

    error: ForerunError


@dataclass(frozen=True, slots=True)
class EndAll:
    """Every session ends with `error`."""

    error: ForerunError


Event: TypeAlias = OpenSession | TreeArrived | CancelSession | CloseStream | Refuse | EndAll


@dataclass(frozen=True, slots=True)
class KvState:
    """Where a session's cache stands; fields as in the message of the same name."""

    committed_len: int
    cached_len: int
    pages_held: int
    pages_free: int
    pages_cached: int


@dataclass(frozen=True, slots=True)
class Timing:
    """Nanoseconds from receipt until the step began, and of the step itself; when it began."""

    queue_ns: int
    verify_ns: int
    began_ns: int


@dataclass(frozen=True, slots=True)
class Hidden:
    """Hidden states of `rows` consecutive positions: bfloat16, little-endian,
    rows x taps x hidden_size."""

    session: int
    first_position: int
    rows: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Opened:
    """A prompt is cached, and the first token is known."""

    session: int
    first_token_id: int
    kv: KvState
    budget: Budget
    timing: Timing


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of a round. `bonus_token_id` is None where the session ended before it.
    `verified_nodes` are fewer than the tree had where the step had no time for the others."""

    session: int
    round: int
    accepted_nodes: list[int]
    token_ids: list[int]
    bonus_token_id: int | None
    kv: KvState
    budget: Budget
    timing: Timing
    plain: bool
    verified_nodes: int
    hidden: Hidden | None


@dataclass(frozen=True, slots=True)
class Finished:
    """A session ended."""

    session: int
    reason: FinishReason
    stats: SessionStats


@dataclass(frozen=True, slots=True)
class Failure:
    """An error of one session, which is over if `ended`."""

    session: int
    error: ForerunError
    ended: bool


@dataclass(slots=True)
class StreamOutput:
    """What one step has for one stream. Hidden states of prompts come before their Opened."""

    hidden: list[Hidden] = field(default_factory=list)
    opened: list[Opened] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)
    finished: list[Finished] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)


StepOutput: TypeAlias = dict[int, StreamOutput]

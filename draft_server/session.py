"""One generation, from Open to Finished.

Owns the committed tokens, the round that is on, and what the client gets of it. Everything here
runs on the event loop; drafting is asked of the drafting thread.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from draft_server.drafting import DraftHandle, DraftingThread, HiddenStates
from draft_server.metrics import DraftMetrics
from draft_server.output import Final, Output
from draft_server.spans import record_round
from draft_server.stops import OutputText
from draft_server.verifier_stream import VerifierStream
from forerun.errors import (
    DeadlineExceeded,
    ForerunError,
    SessionLost,
    SessionNotFound,
    Unavailable,
    from_status,
)
from forerun.obs.span_names import FINISH_REASON, FIRST_TOKEN_NS, counts
from forerun.obs.tracing import Span
from forerun.stats import SessionStats
from forerun.tree import Budget, Tree
from forerun.v1 import tree_pb2, verify_pb2
from forerun.v1.verify_pb2 import FinishReason
from forerun.wire import tree_to_pb

# A session that is lost this often without a token in between is given up: it may be what kills the
# verify server.
MAX_LOST = 8

# How much longer than a draft may take the verifier waits for the tree: the way there takes time.
PATIENCE = 1.5


@dataclass(frozen=True, slots=True)
class Generation:
    """What a client asked for, checked. max_tokens: to emit at most. deadline: when the client
    gives up, on the clock of time.monotonic(); None: never."""

    prompt_ids: Sequence[int]
    max_tokens: int
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    plain: bool = False
    deadline: float | None = None


class Phase(Enum):
    OPENING = "opening"
    DECODING = "decoding"
    ENDED = "ended"


class Session:
    """A generation that is under way; `output` is what its client reads.

    number: its name on the present stream. received: when the request came, time.monotonic().
    span: of the request; it is told what there is to tell, and ended by the call.
    """

    def __init__(
        self,
        generation: Generation,
        text: OutputText,
        stream: VerifierStream,
        drafting: DraftingThread,
        metrics: DraftMetrics,
        eos_token_ids: Sequence[int],
        received: float,
        span: Span,
    ) -> None:
        self.number = 0
        self.output = Output()
        self._generation = generation
        self._text = text
        self._stream = stream
        self._drafting = drafting
        self._metrics = metrics
        eos = () if generation.ignore_eos else eos_token_ids
        self._stop_ids = frozenset(eos) | frozenset(generation.stop_token_ids)
        self._patience_us = min(int(1e6 * PATIENCE * drafting.timeout_s), 0xFFFFFFFF)
        self._received = received
        self._span = span
        self._first_token_at = self._last_token_at = self._sent_at = 0.0
        self._committed = list(generation.prompt_ids)
        self._phase = Phase.OPENING
        self._stats = SessionStats()
        self._opened = 0  # times in a row that brought no token
        # Of the round that is on: its number, what it was granted, whether a tree is wanted, the
        # one that was sent, and why there is none.
        self._round = 0
        self._granted = tree_pb2.Budget()
        self._wanted = False
        self._tree: Tree | None = None
        self._fallback = ""
        # What the drafter has not been told yet; while it is not asked it is told nothing.
        self._untold: list[int] = []
        self._handle: DraftHandle | None = None
        info = drafting.drafter.info
        drafted = not (generation.plain or info.idle)
        self._taps = info.hidden_taps if drafted else ()
        if self._taps and not drafting.demand.wants_hidden_states(beside=stream.num_sessions):
            self._taps, drafted = (), info.blind
        if drafted:
            self._handle = drafting.open(generation.prompt_ids, self._on_draft)

    @property
    def deadline(self) -> float | None:
        return self._generation.deadline

    def start(self) -> None:
        self._metrics.sessions.inc()
        self._stream.add(self)

    def close(self) -> None:
        """Ends it on both servers, unless it has ended: the client is gone."""
        self._end(FinishReason.FINISH_REASON_CANCELLED)

    def open_message(self) -> verify_pb2.Open | None:
        self._phase, self._wanted = Phase.OPENING, False
        self._sent(None)
        reason = self._end_reason()
        if reason is not None:  # the stream broke between the last token and Finished
            self._finish(reason)
            return None
        deadline_ms = 0
        if self._generation.deadline is not None:
            deadline_ms = int(1000 * (self._generation.deadline - time.monotonic()))
            if deadline_ms <= 0:
                self.fail(DeadlineExceeded("the deadline passed before the session was open"))
                return None
        if self._opened > MAX_LOST:
            lost = f"the verify server lost the session {self._opened} times in a row"
            self.fail(SessionLost(f"{lost}; its log tells why"))
            return None
        self._opened += 1
        return verify_pb2.Open(
            prompt_token_ids=self._committed,
            max_tokens=self._generation.max_tokens - self._stats.emitted,
            stop_token_ids=self._generation.stop_token_ids,
            ignore_eos=self._generation.ignore_eos,
            deadline_ms=min(deadline_ms, 0xFFFFFFFF),
            drafting=self._handle is not None,
            # By then every round is answered, if only to say that nothing is proposed.
            patience_us=self._patience_us if self._handle else 0,
            hidden_taps=self._taps,
            traceparent=self._span.traceparent,
        )

    def on_hidden_states(self, hidden: verify_pb2.HiddenStates) -> None:
        """Those of prompt rows come before `on_opened`, those of a round with its verdict."""
        if self._handle is not None:
            rows = HiddenStates(hidden.first_position, hidden.rows, hidden.data)
            self._drafting.tell(self._handle, hidden=rows)

    def on_opened(self, opened: verify_pb2.Opened) -> None:
        length = len(self._committed) + 1
        if self._phase is not Phase.OPENING or opened.kv.committed_len != length:
            self._metrics.stale.labels("opened").inc()
            return
        self._phase, self._round = Phase.DECODING, 0
        self._emit([opened.first_token_id], None, 0)
        self._next_round(opened.budget)

    def on_verdict(self, verdict: verify_pb2.Verdict) -> None:
        block = list(verdict.token_ids)
        if verdict.HasField("bonus_token_id"):
            block.append(verdict.bonus_token_id)
        if (
            self._phase is not Phase.DECODING
            or verdict.round != self._round
            or verdict.kv.committed_len != len(self._committed) + len(block)
        ):
            self._metrics.stale.labels("verdict").inc()
            return
        self._metrics.record_parts(
            total_s=time.monotonic() - self._last_token_at,
            draft_s=max(0.0, self._sent_at - self._last_token_at),
            queue_s=verdict.timing.queue_ns / 1e9,
            verify_s=verdict.timing.verify_ns / 1e9,
        )
        tree = self._tree or Tree.root_only(self._committed[-1])
        if verdict.plain:
            if self._wanted:
                self._fall_back("draft_late")
            elif tree.num_nodes:
                self._stats.stale_trees += 1
        # What was not verified was not drafted, as far as rates go.
        tree = tree.first(verdict.verified_nodes)
        if verdict.HasField("hidden_states"):
            self.on_hidden_states(verdict.hidden_states)
        self._emit(block, tree, len(verdict.accepted_nodes))
        self._next_round(verdict.budget)

    def on_finished(self, finished: verify_pb2.Finished) -> None:
        self._finish(finished.reason)

    def on_error(self, error: verify_pb2.SessionError) -> None:
        failure = from_status(error.status)
        if not error.session_ended:
            self._fall_back("tree_refused")
            self._sent(None)
        elif not isinstance(failure, (SessionNotFound, SessionLost, Unavailable)):
            self.fail(failure, cancel=False)
        else:
            self._stream.reopen(self)

    def fail(self, error: ForerunError, *, cancel: bool = True) -> None:
        if self._phase is not Phase.ENDED:
            self._release("error", cancel=cancel)
            self.output.fail(error)

    def _emit(self, block: list[int], tree: Tree | None, accepted: int) -> None:
        """Commits a block and hands it to the client, up to where a stop string completes. `tree`
        is what the block was verified with, None for the first token."""
        before, self._last_token_at = self._last_token_at, time.monotonic()
        self._opened = 0
        if not self._first_token_at:
            self._first_token_at = self._last_token_at
            seconds = self._first_token_at - self._received
            self._metrics.first_token_seconds.observe(seconds)
            self._span.set({FIRST_TOKEN_NS: int(1e9 * seconds)})
        piece = self._text.push(block)
        block, accepted = block[: piece.num_tokens], min(accepted, piece.num_tokens)
        if tree is not None and block:
            gap = (self._last_token_at - before) / len(block)
            for _ in block:
                self._metrics.inter_token_seconds.observe(gap)
        self._committed += block
        self._untold += block
        if tree is None:
            self._stats.emitted += len(block)
        else:
            self._stats.record_round(tree, accepted, len(block))
            round_ = SessionStats()
            round_.record_round(tree, accepted, len(block))
            self._metrics.record(round_)
            if self._span.recording:
                times = before, self._sent_at, self._last_token_at
                record_round(self._span, self._round, round_, self._granted, self._fallback, times)
        self.output.put(block, accepted, piece.text)
        if piece.stopped:
            self._end(FinishReason.FINISH_REASON_STOP)

    def _next_round(self, granted: tree_pb2.Budget) -> None:
        self._round += 1
        self._granted, self._fallback = granted, ""
        self._wanted = False
        self._sent(None)
        if self._phase is not Phase.DECODING or self._handle is None or self._end_reason():
            return
        if self._taps:
            self._drafting.demand.record(granted.nodes, sessions=self._stream.num_sessions)
        if not granted.nodes or not granted.depth:
            if self._taps:
                # Its rows can be cached meanwhile: hidden states take more room than their KV.
                untold, self._untold = self._untold, []
                self._drafting.tell(self._handle, untold)
            return
        self._wanted = True
        # A node deeper than this could only be cut: the bonus token is the last one.
        left = self._generation.max_tokens - self._stats.emitted - 1
        if left < 1:
            self._on_draft(None, "last_token")
            return
        untold, self._untold = self._untold, []
        budget = Budget(granted.nodes, min(granted.depth, left))
        self._drafting.submit(self._handle, untold, budget)

    def _on_draft(self, tree: Tree | None, reason: str) -> None:
        if not (self._wanted and self.number):
            self._metrics.stale.labels("draft").inc()
            return
        if tree is None:
            self._fall_back(reason)
        self._wanted = False
        tree = tree or Tree.root_only(self._committed[-1])
        self._sent(tree)
        message = verify_pb2.SessionTree(
            session=self.number,
            round=self._round,
            committed_len=len(self._committed),
            tree=tree_to_pb(tree),
        )
        self._sent_at = time.monotonic()
        self._stream.send_tree(message)

    def _sent(self, tree: Tree | None) -> None:
        """Keeps the tree that is on its way, None where there is none any more."""
        before, self._tree = self._tree, tree
        for each, change in ((before, -1), (tree, 1)):
            if each is not None and each.num_nodes:
                self._metrics.trees_in_flight.inc(change)

    def _fall_back(self, reason: str) -> None:
        self._fallback = reason
        self._metrics.fallback.labels(reason).inc()

    def _end_reason(self) -> FinishReason.ValueType | None:
        """Why the output ends where it stands, by the rules of the verify server."""
        if not self._stats.emitted:
            return None
        if self._committed[-1] in self._stop_ids:
            return FinishReason.FINISH_REASON_STOP
        if self._stats.emitted >= self._generation.max_tokens:
            return FinishReason.FINISH_REASON_LENGTH
        return None

    def _finish(self, reason: FinishReason.ValueType) -> None:
        """The end by the verify server: what was held back of the text goes out."""
        if self._phase is not Phase.ENDED:
            self._end(reason, self._text.finish(), cancel=False)

    def _end(self, reason: FinishReason.ValueType, text: str = "", *, cancel: bool = True) -> None:
        if self._phase is Phase.ENDED:
            return
        name = FinishReason.Name(reason).removeprefix("FINISH_REASON_").lower()
        self._release(name, cancel=cancel)
        self._span.set({FINISH_REASON: name})
        now = time.monotonic()
        final = Final(
            reason=reason,
            stats=self._stats,
            time_to_first_token_us=int(1e6 * ((self._first_token_at or now) - self._received)),
            total_us=int(1e6 * ((self._last_token_at or now) - self._received)),
        )
        self.output.finish(text, final)

    def _release(self, reason: str, *, cancel: bool) -> None:
        self._phase, self._wanted = Phase.ENDED, False
        self._sent(None)
        self._metrics.sessions.dec()
        self._metrics.finished.labels(reason).inc()
        self._span.set(counts(self._stats))
        self._stream.remove(self, cancel=cancel)
        if self._handle is not None:
            self._drafting.close(self._handle)
            self._handle = None

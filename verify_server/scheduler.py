"""Runs sessions: takes what arrived, computes one step, and says what came of it.

Knows sessions and rows; no gRPC, no threads, no sleeping. `submit` events, then `step`; between
two steps `next_due_ns` tells when there is something to do. One thread calls all of it, so an event
that arrives during a step takes effect after it: pages are never freed under a running forward.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence

from forerun.engine.interface import TargetEngine
from forerun.errors import (
    DeadlineExceeded,
    ForerunError,
    InvalidArgument,
    InvalidTree,
    Overloaded,
)
from forerun.tree import validate
from verify_server.admission import Admission
from verify_server.config import VerifyConfig
from verify_server.costs import StepCosts
from verify_server.events import (
    CancelSession,
    CloseStream,
    EndAll,
    Event,
    Failure,
    Finished,
    OpenSession,
    Refuse,
    StepOutput,
    StreamOutput,
    TreeArrived,
)
from verify_server.gathering import hold_until_ns
from verify_server.metrics import Metrics
from verify_server.residency import Residency
from verify_server.sessions import Dropped, Phase, Session
from verify_server.step import Step, decode_share, pack
from verify_server.stops import FinishReason
from verify_server.verdicts import Judge

RETRY_AFTER_MS = 500


class Scheduler:
    """All sessions of all streams on one engine.

    vocab_size: ids of prompts and trees are 0 to vocab_size - 1. eos_ids end a session unless it
    ignores them. clock_ns: monotonic nanoseconds. Raises ValueError where the engine's rows do not
    suffice for the largest tree.
    """

    def __init__(
        self,
        engine: TargetEngine,
        config: VerifyConfig,
        *,
        vocab_size: int,
        eos_ids: Sequence[int] = (),
        metrics: Metrics | None = None,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        share = decode_share(engine.info.max_rows, engine.info.max_rows)
        if config.max_nodes + 1 > share:
            raise ValueError(
                f"--max-nodes is {config.max_nodes}, but the engine's {engine.info.max_rows} rows"
                f" leave room for {share - 1} nodes beside prompts; lower --max-nodes"
            )
        self.metrics = metrics or Metrics()
        self.admission = Admission(engine.info, config, vocab_size=vocab_size, eos_ids=eos_ids)
        self._engine = engine
        self._config = config
        self._clock_ns = clock_ns
        self._sessions: dict[tuple[int, int], Session] = {}
        self._num_open: Counter[int] = Counter()  # sessions by stream
        self._residency = Residency(
            engine, config.draft_nodes + 1, self._evicted, self.metrics.record_prefix_hit
        )
        self._costs = StepCosts(engine.info)
        self._judge = Judge(engine, config, self._residency, self._costs, self.metrics)
        self._free_ns = 0  # when the last step ended
        self._output: StepOutput = {}
        self._refusal: ForerunError | None = None
        self._tell_load()

    @property
    def num_sessions(self) -> int:
        """Sessions that are not over."""
        return len(self._sessions)

    def submit(self, event: Event) -> None:
        """Takes an event; what it leads to is in the next step's output."""
        match event:
            case OpenSession():
                self._open_session(event)
            case TreeArrived():
                self._take_tree(event)
            case CancelSession():
                session = self._sessions.get((event.stream, event.session))
                if session is not None:
                    self._finish(session, FinishReason.CANCELLED)
            case CloseStream():
                for session in list(self._sessions.values()):
                    if session.stream == event.stream:
                        self._leave(session)
                del self._num_open[event.stream]
            case Refuse():
                self._refusal = event.error
            case EndAll():
                for session in list(self._sessions.values()):
                    self._fail(session, event.error)

    def step(self) -> StepOutput:
        """Computes all that is ready, unless that is held for trees about to come; what came of it,
        by stream."""
        began_ns = self._clock_ns()
        self._expire(began_ns)
        self._residency.admit()
        step = Step()
        if not self._hold_until_ns(began_ns):
            step = pack(
                self._residency,
                self._costs,
                self._config,
                now_ns=began_ns,
                max_rows=self._engine.info.max_rows,
                on_drop=self._drop,
            )
        if step.rows:
            outs = self._engine.forward(step.rows)
            idle_ns = began_ns - self._free_ns
            ended = self._judge.settle(step, outs, began_ns, idle_ns, self._clock_ns, self._stream)
            for session, end in ended:
                if isinstance(end, ForerunError):
                    self._fail(session, end)
                else:
                    self._finish(session, end)
            self._residency.admit()
            self._free_ns = self._clock_ns()
        self._tell_load()
        output, self._output = self._output, {}
        return output

    def next_due_ns(self) -> int | None:
        """When there is something to do (0: at once), or None if nothing until the next event."""
        if self._output:
            return 0
        hold_ns = self._hold_until_ns(self._clock_ns())
        due = [s.deadline_ns for s in self._sessions.values() if s.deadline_ns is not None]
        for session in self._residency.residents:
            ready_ns = session.ready_ns if session.phase is Phase.DECODING else 0
            due.append(max(ready_ns, hold_ns))
        return min(due, default=None)

    def _hold_until_ns(self, now_ns: int) -> int:
        """Until when the next step waits for trees that are about to come; 0: it does not."""
        if not self._config.adaptive:
            return 0
        decoding = self._residency.decoding
        prompts = len(decoding) < len(self._residency.residents)
        return hold_until_ns(
            decoding, self._costs, prompts=prompts, now_ns=now_ns, free_ns=self._free_ns
        )

    def _open_session(self, event: OpenSession) -> None:
        key = event.stream, event.session
        if key in self._sessions:
            error = InvalidArgument.for_field(
                "open.session", f"is {event.session}, which is in use; choose another id"
            )
            self._stream(event.stream).failures.append(Failure(event.session, error, ended=False))
            return
        try:
            self._check_room(event)
            session = self.admission.session(event)
            self._sessions[key] = session
            self._num_open[event.stream] += 1
            self._residency.enter(session)
            if len(self._residency.waiting) > self._config.max_waiting and (
                self._residency.waiting[-1] is session
            ):
                self._leave(session)
                raise Overloaded(
                    f"{self._config.max_waiting} sessions wait for pages of the KV cache already",
                    reason="KV_FULL",
                    retry_after_ms=RETRY_AFTER_MS,
                )
        except ForerunError as error:
            self.metrics.record_error(error.reason)
            self._stream(event.stream).failures.append(Failure(event.session, error, ended=True))

    def _check_room(self, event: OpenSession) -> None:
        if self._refusal is not None:
            raise self._refusal
        limit = self._config.max_sessions
        if self._num_open[event.stream] >= limit:
            raise Overloaded(
                f"the stream has {limit} sessions open, which is the limit",
                reason="TOO_MANY_SESSIONS",
                retry_after_ms=RETRY_AFTER_MS,
            )

    def _take_tree(self, event: TreeArrived) -> None:
        session = self._sessions.get((event.stream, event.session))
        if session is None:
            self.metrics.record_dropped(Dropped.UNKNOWN_SESSION)
            return
        refusal = session.refusal(event)
        if refusal is not None:
            self._drop(session, refusal)
            return
        try:
            validate(
                event.tree,
                vocab_size=self.admission.vocab_size,
                max_nodes=self._config.max_nodes,
                max_depth=self._config.max_depth,
                root_token_id=session.committed[-1],
            )
        except InvalidTree as error:
            # A draft's fault is no reason to fail a user's request: the round goes on plainly.
            self.metrics.record_dropped(Dropped.MALFORMED)
            session.due_ns = min(session.due_ns, event.received_ns)
            self._stream(event.stream).failures.append(Failure(event.session, error, ended=False))
            return
        session.take(event.tree.first(session.granted.nodes), event.received_ns)

    def _tell_load(self) -> None:
        self.metrics.set_load(Counter(session.phase for session in self._sessions.values()))
        self.metrics.set_pages(
            total=self._engine.info.pages_total,
            free=self._engine.pages_free,
            cached=self._engine.pages_cached,
            evicted=self._engine.pages_evicted,
        )

    def _expire(self, now_ns: int) -> None:
        for session in list(self._sessions.values()):
            if session.deadline_ns is not None and session.deadline_ns <= now_ns:
                self._fail(session, DeadlineExceeded("the session's deadline has passed"))

    def _drop(self, session: Session, reason: Dropped) -> None:
        session.stats.stale_trees += 1
        self.metrics.record_dropped(reason)

    def _evicted(self, session: Session) -> None:
        self.metrics.record_preemption()
        if session.tree is not None:
            self._drop(session, Dropped.PREEMPTED)
        session.yield_pages()

    def _finish(self, session: Session, reason: FinishReason) -> None:
        self._leave(session)
        self.metrics.record_finished(reason.value)
        finished = Finished(session.number, reason, session.stats)
        self._stream(session.stream).finished.append(finished)

    def _fail(self, session: Session, error: ForerunError) -> None:
        self._leave(session)
        self.metrics.record_error(error.reason)
        self._stream(session.stream).failures.append(Failure(session.number, error, ended=True))

    def _leave(self, session: Session) -> None:
        del self._sessions[session.key]
        self._num_open[session.stream] -= 1
        self._residency.leave(session)

    def _stream(self, stream: int) -> StreamOutput:
        return self._output.setdefault(stream, StreamOutput())

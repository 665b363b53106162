"""The one stream to the verify server, and what keeps it up.

Owns the connection and the numbering of sessions on it: one reader task and one writer task. A
stream that breaks is opened anew, and its sessions with it. Knows nothing of drafting or text.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Callable
from typing import Protocol, TypeAlias, TypeVar

import grpc

from draft_server.metrics import DraftMetrics
from draft_server.outgoing import Outgoing
from draft_server.target import Metadata, Vocabulary, describe_target, difference
from forerun.errors import (
    DeadlineExceeded,
    ForerunError,
    Internal,
    ModelMismatch,
    SessionLost,
    Unavailable,
    from_rpc_error,
)
from forerun.v1 import verify_pb2
from forerun.v1.verify_pb2_grpc import VerifyServiceStub

logger = logging.getLogger(__name__)

CONNECT_TIMEOUT_S = 5.0
# Between attempts; channel options bound gRPC's own waits in the same way.
MIN_BACKOFF_S, MAX_BACKOFF_S = 0.1, 1.0
# How long before a client's deadline it is told why there is no answer: later the client has given
# up by itself, and knows no reason.
ANSWER_S = 0.2
# Of prompts in one message, well below every limit on messages.
MAX_PROMPT_BYTES = 1 << 20
# Of opens, trees and cancels each in one message, where the verify server does not tell its limit.
MIN_ENTRIES = 64

_Call: TypeAlias = "grpc.aio.StreamStreamCall[verify_pb2.VerifyRequest, verify_pb2.VerifyResponse]"

M = TypeVar("M")


class StreamSession(Protocol):
    """What the stream carries. `number` is its name on the present stream, 0 while it has none;
    `deadline` is when its client gives up, on the clock of time.monotonic(), None for never."""

    number: int

    @property
    def deadline(self) -> float | None: ...

    def open_message(self) -> verify_pb2.Open | None:
        """Opens it at its committed tokens; None where it has ended meanwhile."""
        ...

    def on_hidden_states(self, hidden: verify_pb2.HiddenStates) -> None: ...
    def on_opened(self, opened: verify_pb2.Opened) -> None: ...
    def on_verdict(self, verdict: verify_pb2.Verdict) -> None: ...
    def on_finished(self, finished: verify_pb2.Finished) -> None: ...
    def on_error(self, error: verify_pb2.SessionError) -> None: ...
    def fail(self, error: ForerunError) -> None: ...


class VerifierStream:
    """The stream to the verify server behind `channel`. All methods are for one event loop.

    address: of that server, for messages. metadata: sent with every call. reopen_timeout_s: how
    long a session waits for a stream before it fails with Unavailable. on_ready: called with
    whether sessions can be served. `target` is the description of the target, None until it is
    known; `refusal` says why the server cannot be used although it answers.
    """

    def __init__(
        self,
        channel: grpc.aio.Channel,
        address: str,
        tokenizer: Vocabulary,
        metrics: DraftMetrics,
        *,
        metadata: Metadata = (),
        reopen_timeout_s: float = 30.0,
        on_ready: Callable[[bool], None] = lambda ready: None,
    ) -> None:
        self.target: verify_pb2.GetTargetInfoResponse | None = None
        self.refusal: ModelMismatch | None = None
        self._address = address
        self._metadata = metadata
        self._stub = VerifyServiceStub(channel)
        self._tokenizer = tokenizer
        self._metrics = metrics
        self._reopen_timeout_s = reopen_timeout_s
        self._on_ready = on_ready
        self._numbers = itertools.count(1)
        self._sessions: dict[int, StreamSession] = {}
        # Cancelled here, not yet confirmed: what still comes for them is no surprise.
        self._cancelled: set[int] = set()
        # Without a stream, each with the timer that ends its waiting.
        self._waiting: dict[StreamSession, asyncio.TimerHandle] = {}
        self._call: _Call | None = None
        self._draining = False
        self._outgoing = Outgoing(MIN_ENTRIES)
        self._known = asyncio.Event()
        self._failure = "it was not reached yet"
        self._task: asyncio.Task[None] | None = None

    @property
    def num_sessions(self) -> int:
        """Sessions that are open or wait to be, and those whose cancel is not confirmed yet."""
        return len(self._sessions) + len(self._waiting) + len(self._cancelled)

    def start(self) -> None:
        self._task = asyncio.create_task(self._keep_up(), name="verifier stream")

    async def stop(self) -> None:
        """Ends the stream; sessions that are left fail with Unavailable."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        for session in [*self._sessions.values(), *self._waiting]:
            session.fail(Unavailable("the draft server is stopping", reason="DRAINING"))

    async def known_target(self, deadline: float | None = None) -> verify_pb2.GetTargetInfoResponse:
        """The target's description, awaited for the reopen timeout while the server is away, and
        not beyond the `deadline` of the caller.

        Raises ModelMismatch, or Unavailable or DeadlineExceeded where it does not come.
        """
        if self.target is None:
            wait_s, missing = self._patience(deadline)
            try:
                await asyncio.wait_for(self._known.wait(), wait_s)
            except asyncio.TimeoutError:
                raise missing() from None
        if self.refusal is not None:
            raise self.refusal
        assert self.target is not None
        return self.target

    def add(self, session: StreamSession) -> None:
        """Opens a session now, or once there is a stream that takes new ones."""
        if self._call is not None and not self._draining:
            self._open(session)
        elif session not in self._waiting:
            wait_s, missing = self._patience(session.deadline)
            loop = asyncio.get_running_loop()
            self._waiting[session] = loop.call_later(wait_s, self._expire, session, missing)

    def remove(self, session: StreamSession, *, cancel: bool) -> None:
        """Forgets a session; `cancel` tells the verify server, which has not ended it yet."""
        timer = self._waiting.pop(session, None)
        if timer is not None:
            timer.cancel()
        number, session.number = session.number, 0
        if self._sessions.pop(number, None) is not None and cancel:
            if self._outgoing.cancel(number):
                self._cancelled.add(number)
        self._leave_if_drained()

    def send_tree(self, tree: verify_pb2.SessionTree) -> None:
        self._outgoing.tree(tree)

    def _open(self, session: StreamSession) -> None:
        session.number = next(self._numbers)
        message = _message_of(session)
        if message is None:
            session.number = 0
            return
        message.session = session.number
        self._sessions[session.number] = session
        self._outgoing.open(message)

    def _expire(self, session: StreamSession, missing: Callable[[], ForerunError]) -> None:
        self._waiting.pop(session, None)
        session.fail(self.refusal or missing())

    def _patience(self, deadline: float | None) -> tuple[float, Callable[[], ForerunError]]:
        """Seconds to wait for a verify server, and the error when they are over."""
        if deadline is not None:
            left_s = deadline - time.monotonic()
            wait_s = max(0.0, left_s - min(ANSWER_S, left_s / 4))
            if wait_s < self._reopen_timeout_s:
                return wait_s, self._too_late
        return self._reopen_timeout_s, self._unreachable

    def _too_late(self) -> DeadlineExceeded:
        return DeadlineExceeded(
            f"no verify server was reachable at {self._address} before the deadline:"
            f" {self._failure}; start one there, or name another with --verifier"
        )

    def _unreachable(self) -> Unavailable:
        return Unavailable(
            f"no verify server at {self._address} within {self._reopen_timeout_s:g} s:"
            f" {self._failure}; start one there, or name another with --verifier",
            reason="VERIFIER_UNREACHABLE",
        )

    async def _keep_up(self) -> None:
        backoff = MIN_BACKOFF_S
        while True:
            try:
                await self._describe()
                self.refusal = None
                self._known.set()
                await self._run()
            except ModelMismatch as error:
                if error.message != self._failure:
                    logger.error("refusing to serve: %s", error)
                self.refusal, self._failure = error, error.message
                self._known.set()
            except grpc.aio.AioRpcError as error:
                failure = from_rpc_error(error).message
                if failure != self._failure:  # once, not at every attempt
                    logger.warning("no stream to the verify server: %s", failure)
                self._failure = failure
            except Exception:
                self._failure = "the answer of the verify server cannot be used"
                logger.exception("no stream to the verify server")
            if self._call is not None:
                backoff = MIN_BACKOFF_S
            self._disconnect()
            await asyncio.sleep(backoff)
            backoff = min(2 * backoff, MAX_BACKOFF_S)

    async def _describe(self) -> None:
        target = await describe_target(
            self._stub, self._tokenizer, CONNECT_TIMEOUT_S, self._metadata
        )
        other = difference(self.target, target) if self.target is not None else ""
        if other:
            lost = f"the verify server came back with another target: {other}; generate anew"
            logger.warning("%s", lost)
            for session in list(self._waiting):
                session.fail(SessionLost(lost))
        self.target = target

    async def _run(self) -> None:
        """One stream, until it ends."""
        assert self.target is not None
        call: _Call = self._stub.Verify(metadata=self._metadata)
        self._outgoing = Outgoing(
            self.target.limits.max_entries or MIN_ENTRIES, self.target.instance
        )
        writer = asyncio.create_task(_write(call, self._outgoing), name="verifier stream writer")
        try:
            await call.wait_for_connection()
            self._connect(call)
            while isinstance(message := await call.read(), verify_pb2.VerifyResponse):
                self._dispatch(message)
        finally:
            writer.cancel()
            call.cancel()
            await asyncio.gather(writer, return_exceptions=True)

    def _connect(self, call: _Call) -> None:
        assert self.target is not None
        logger.info("connected: target %s on %s", self.target.model_name, self.target.isa)
        self._call, self._failure = call, "the stream ended"
        self._metrics.verifier_up.set(1)
        self._on_ready(True)
        waiting, self._waiting = self._waiting, {}
        for session, timer in waiting.items():
            timer.cancel()
            self._open(session)

    def _disconnect(self) -> None:
        """The stream is gone, and with it everything that the verify server knew of it."""
        if self._call is None:
            return
        self._call, self._draining = None, False
        self._metrics.verifier_up.set(0)
        self._on_ready(False)
        sessions, self._sessions = self._sessions, {}
        self._cancelled.clear()
        for session in sessions.values():
            self.reopen(session)

    def reopen(self, session: StreamSession) -> None:
        """Opens a session that broke off, under another number."""
        self._sessions.pop(session.number, None)
        session.number = 0
        self._metrics.reopened.inc()
        self.add(session)

    def _leave_if_drained(self) -> None:
        if self._draining and not self._sessions:
            self._outgoing.close()  # the server ends the stream, and another one takes its place

    def _dispatch(self, response: verify_pb2.VerifyResponse) -> None:
        if response.HasField("drain"):
            logger.info("the verify server drains, within %d ms", response.drain.deadline_ms)
            self._draining, self._failure = True, "it is stopping"
        for hidden in response.hidden_states:
            if session := self._find(hidden.session, "hidden_states"):
                _deliver(session, session.on_hidden_states, hidden)
        for opened in response.opened:
            if session := self._find(opened.session, "opened"):
                _deliver(session, session.on_opened, opened)
        for verdict in response.verdicts:
            if session := self._find(verdict.session, "verdict"):
                _deliver(session, session.on_verdict, verdict)
        for finished in response.finished:
            if session := self._find(finished.session, "finished"):
                _deliver(session, session.on_finished, finished)
            self._cancelled.discard(finished.session)
        for error in response.errors:
            if session := self._find(error.session, "error"):
                _deliver(session, session.on_error, error)
            if error.session_ended:
                self._cancelled.discard(error.session)
        self._leave_if_drained()

    def _find(self, number: int, kind: str) -> StreamSession | None:
        session = self._sessions.get(number)
        if session is None and number not in self._cancelled:
            self._metrics.stale.labels(kind).inc()
        return session


def _message_of(session: StreamSession) -> verify_pb2.Open | None:
    """A defect in one session must not keep the others from being opened."""
    try:
        return session.open_message()
    except Exception:
        logger.exception("a session failed")
        session.fail(_defect())
        return None


def _defect() -> Internal:
    return Internal("internal error of the draft server; its log tells more")


def _deliver(session: StreamSession, handle: Callable[[M], None], message: M) -> None:
    """A defect in one session must not end the stream of all."""
    try:
        handle(message)
    except Exception:
        logger.exception("a session failed")
        session.fail(_defect())


async def _write(call: _Call, outgoing: Outgoing) -> None:
    try:
        while (request := await outgoing.take(MAX_PROMPT_BYTES)) is not None:
            await call.write(request)
        await call.done_writing()
    except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
        pass  # the reader of the same call is told why

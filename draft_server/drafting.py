"""The drafting thread: all drafting of a server, one batch at a time.

Owns the drafter and the states of its sessions, and sees to it that nothing a drafter does can
fail a session: what it raises, or does not deliver in time, becomes a plain decoding step. Knows
nothing of gRPC.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from draft_server.demand import Demand
from draft_server.drafters.base import Drafter, DraftState, FeatureDrafter
from forerun.tree import Budget, Tree

logger = logging.getLogger(__name__)

# A session whose drafter raised this often decodes plainly from then on.
MAX_FAILURES = 3

# The part of its time that a batch may use: the rest is for what it cannot foresee.
USABLE_TIME = 0.75

# The tree (None: nothing to propose), and the reason where nothing is proposed.
Deliver = Callable[["Tree | None", str], None]


@dataclass(frozen=True, slots=True)
class HiddenStates:
    """The target's hidden states of consecutive positions, as they came: `rows` rows of bfloat16,
    little-endian. first_position: 0 is the first prompt token."""

    first_position: int
    rows: int
    data: bytes


@dataclass(slots=True, eq=False)
class DraftHandle:
    """One session, as both sides know it.

    deliver is called on the event loop. committed, state and failures belong to the drafting
    thread; the others to the event loop: untold and unfed are committed tokens and hidden states
    that the thread has not been told of, told whether it knows the session, asked counts the
    questions, and awaited is the one that waits for its answer (0: none).
    """

    deliver: Deliver
    committed: list[int] = field(default_factory=list)
    state: DraftState | None = None
    failures: int = 0
    untold: list[int] = field(default_factory=list)
    unfed: list[HiddenStates] = field(default_factory=list)
    told: bool = False
    timer: asyncio.TimerHandle | None = None
    asked: int = 0
    awaited: int = 0


@dataclass(frozen=True, slots=True)
class _Job:
    """budget None: nothing to draft now. close: the session is over."""

    handle: DraftHandle
    token_ids: Sequence[int] = ()
    question: int = 0
    budget: Budget | None = None
    hidden: Sequence[HiddenStates] = ()
    close: bool = False


@dataclass(frozen=True, slots=True)
class _Result:
    handle: DraftHandle
    question: int
    tree: Tree | None
    reason: str = ""


class DraftingThread:
    """Runs `drafter` for sessions of the event loop that calls `start`.

    timeout_s: after this long a round gets no proposal. demand: what is asked of sessions with
    hidden states. All methods are for the event loop.
    """

    def __init__(self, drafter: Drafter[Any], timeout_s: float) -> None:
        self.drafter = drafter
        self.timeout_s = timeout_s
        self.demand = Demand(blind=drafter.info.blind)
        self._inbox: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        # A batch outlasted its time and has not come back yet: meanwhile nothing is queued for it.
        self._overdue = False

    @property
    def num_waiting(self) -> int:
        """Jobs that the thread has not taken yet."""
        return self._inbox.qsize()

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, name="drafting", daemon=True)
        self._thread.start()

    async def stop(self) -> None:
        """Ends the thread after its present batch, or leaves it behind after one second."""
        if self._thread is not None:
            self._inbox.put(None)
            await asyncio.to_thread(self._thread.join, 1.0)

    def open(self, prompt_ids: Sequence[int], deliver: Deliver) -> DraftHandle:
        handle = DraftHandle(deliver, untold=list(prompt_ids))
        self.tell(handle)
        return handle

    def tell(
        self,
        handle: DraftHandle,
        token_ids: Sequence[int] = (),
        hidden: HiddenStates | None = None,
    ) -> None:
        """Adds committed tokens or hidden states, and asks for nothing."""
        handle.untold += token_ids
        if hidden is not None:
            handle.unfed.append(hidden)
        if not self._overdue:
            self._hand_over(handle)

    def submit(self, handle: DraftHandle, token_ids: Sequence[int], budget: Budget) -> None:
        """Adds committed tokens and asks for a tree behind them; exactly one `deliver` follows,
        unless a later `submit` or `close` overtakes it."""
        self._cancel_timer(handle)
        handle.untold += token_ids
        handle.asked += 1
        handle.awaited = handle.asked
        late = _Result(handle, handle.asked, None, "draft_late")
        assert self._loop is not None, "start() comes first"
        if self._overdue:
            handle.timer = self._loop.call_later(0.0, self._answer, late)
        else:
            self._hand_over(handle, budget)
            handle.timer = self._loop.call_later(self.timeout_s, self._expire, late)

    def close(self, handle: DraftHandle) -> None:
        self._cancel_timer(handle)
        handle.awaited = 0
        if handle.told:
            self._inbox.put(_Job(handle, close=True))

    def _hand_over(self, handle: DraftHandle, budget: Budget | None = None) -> None:
        job = _Job(handle, handle.untold, handle.asked, budget, handle.unfed)
        handle.untold, handle.unfed, handle.told = [], [], True
        self._inbox.put(job)

    def _cancel_timer(self, handle: DraftHandle) -> None:
        if handle.timer is not None:
            handle.timer.cancel()
            handle.timer = None

    def _expire(self, late: _Result) -> None:
        self._overdue = True
        self._answer(late)

    def _deliver(self, results: Sequence[_Result]) -> None:
        self._overdue = False
        for result in results:
            self._answer(result)

    def _answer(self, result: _Result) -> None:
        handle = result.handle
        if handle.awaited == result.question:
            self._cancel_timer(handle)
            handle.awaited = 0
            handle.deliver(result.tree, result.reason)

    # From here on: the drafting thread.

    def _run(self) -> None:
        assert self._loop is not None
        more = True
        while True:
            jobs = self._take(block=not more)
            if jobs is None:
                return
            results = self._work(jobs)
            if jobs:  # without a result too: whoever waits must learn that the batch is back
                try:
                    self._loop.call_soon_threadsafe(self._deliver, results)
                except RuntimeError:  # the loop is closed: nobody waits any more
                    return
            more = bool(jobs) or self._warm()

    def _take(self, block: bool) -> list[_Job] | None:
        """All jobs that wait, at least one where it may block; None at the end."""
        jobs: list[_Job] = []
        try:
            while True:
                job = self._inbox.get(block=block and not jobs)
                if job is None:
                    return None
                jobs.append(job)
        except queue.Empty:
            return jobs

    def _work(self, jobs: Sequence[_Job]) -> list[_Result]:
        """Applies all jobs, then drafts once for the sessions that wait for it."""
        waiting: dict[DraftHandle, _Job] = {}
        for job in jobs:
            if job.close:
                waiting.pop(job.handle, None)
                self._close(job.handle)
                continue
            self._advance(job)
            if job.budget is not None:
                waiting[job.handle] = job
        ready = [job for job in waiting.values() if job.handle.state is not None]
        results = [
            _Result(job.handle, job.question, None, "drafter_error")
            for job in waiting.values()
            if job.handle.state is None
        ]
        return results + self._draft(ready)

    def _advance(self, job: _Job) -> None:
        handle = job.handle
        handle.committed.extend(job.token_ids)
        try:
            if handle.state is not None:
                self.drafter.advance(handle.state, job.token_ids)
            elif handle.failures < self._max_failures:
                handle.state = self.drafter.open(handle.committed)
            for states in job.hidden if handle.state is not None else ():
                hidden = np.frombuffer(states.data, dtype="<u2").reshape(states.rows, -1)
                feed = cast("FeatureDrafter[Any]", self.drafter).feed
                feed(handle.state, states.first_position, hidden)
        except Exception:
            self._fail(handle)

    @property
    def _max_failures(self) -> int:
        # Hidden states that a lost state has taken do not come again.
        return 1 if self.drafter.info.hidden_taps else MAX_FAILURES

    def _draft(self, jobs: Sequence[_Job]) -> list[_Result]:
        if not jobs:
            return []
        try:
            batch = [(job.handle.state, job.budget or Budget(0, 0)) for job in jobs]
            trees = self.drafter.draft(batch, USABLE_TIME * self.timeout_s)
            return [self._result(job, tree) for job, tree in zip(jobs, trees, strict=True)]
        except Exception:
            if len(jobs) > 1:  # one of them is at fault: the others still get their trees
                return [result for job in jobs for result in self._draft([job])]
            self._fail(jobs[0].handle)
            return [_Result(jobs[0].handle, jobs[0].question, None, "drafter_error")]

    def _result(self, job: _Job, tree: Tree) -> _Result:
        if tree.num_nodes:
            return _Result(job.handle, job.question, tree)
        state = job.handle.state
        reason = (state.fallback if state is not None else "") or "no_proposal"
        return _Result(job.handle, job.question, None, reason)

    def _fail(self, handle: DraftHandle) -> None:
        """Drops a state that may be broken; the next job opens another."""
        logger.exception("drafter %s failed; the session decodes plainly", self.drafter.info.name)
        handle.failures += 1
        self._close(handle)

    def _close(self, handle: DraftHandle) -> None:
        state, handle.state = handle.state, None
        try:
            if state is not None:
                self.drafter.close(state)
        except Exception:
            logger.exception("drafter %s failed to close a session", self.drafter.info.name)

    def _warm(self) -> bool:
        try:
            return self.drafter.warm()
        except Exception:
            logger.exception("drafter %s failed to prefill", self.drafter.info.name)
            return False

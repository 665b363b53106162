"""The one thread that runs the scheduler and calls the engine.

Owns the queue in and the way out: what one step produced reaches the event loop with one wake-up.
Knows nothing of what the events mean.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from forerun.engine.interface import Rows, TargetEngine
from forerun.errors import Internal
from verify_server.events import EndAll, Event, Refuse, StepOutput
from verify_server.scheduler import Scheduler

logger = logging.getLogger(__name__)

Notice = Callable[[], None]


@dataclass(frozen=True, slots=True)
class _Message:
    events: Sequence[Event]
    on_handled: Notice | None


class EngineThread:
    """Runs steps while there is something to do.

    deliver: called on the event loop with what a step produced and the number of sessions that are
    open then. on_failure: called on the event loop once, when the engine has raised; all sessions
    have ended with INTERNAL by then, and new ones are refused.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        engine: TargetEngine,
        deliver: Callable[[StepOutput, int], None],
        on_failure: Notice,
    ) -> None:
        self._scheduler = scheduler
        self._engine = engine
        self._deliver = deliver
        self._on_failure = on_failure
        self._inbox: queue.SimpleQueue[_Message | None] = queue.SimpleQueue()
        # When the step that runs began, 0 between steps; written by the engine's thread alone.
        self._step_began_ns = 0
        self._thread = threading.Thread(target=self._run, name="forerun-engine", daemon=True)
        self._loop: asyncio.AbstractEventLoop
        self._warm: asyncio.Future[None]

    @property
    def num_waiting(self) -> int:
        """Messages that were handed in and not taken yet."""
        return self._inbox.qsize()

    @property
    def busy_s(self) -> float:
        """Seconds since the step that runs began, 0 between steps. For any thread."""
        began_ns = self._step_began_ns
        return (time.monotonic_ns() - began_ns) / 1e9 if began_ns else 0.0

    async def start(self) -> None:
        """Starts the thread and returns once the engine has run its first rows; raises what it
        raises."""
        self._loop = asyncio.get_running_loop()
        self._warm = self._loop.create_future()
        self._thread.start()
        await self._warm

    def submit(self, events: Sequence[Event], on_handled: Notice | None = None) -> None:
        """Hands events in. `on_handled` is called on the event loop after the step that follows,
        once its output has been delivered."""
        self._inbox.put(_Message(events, on_handled))

    async def handled(self, *events: Event, within_s: float | None = None) -> None:
        """Hands events in and returns once what they led to has been delivered, or a step that does
        not end has kept them from it for `within_s` seconds."""
        done = self._loop.create_future()
        self.submit(events, lambda: None if done.done() else done.set_result(None))
        await asyncio.wait([done], timeout=within_s)

    async def stop(self, within_s: float) -> None:
        """Ends the thread after the step that is running, or leaves it behind after `within_s`
        seconds."""
        self._inbox.put(None)
        await asyncio.to_thread(self._thread.join, within_s)
        if self._thread.is_alive():
            logger.error("the engine's step has not ended; its thread is left behind")

    def _run(self) -> None:
        try:
            warm_up(self._engine)
        except Exception as error:
            self._call(self._warm.set_exception, error)
            return
        self._call(self._warm.set_result, None)
        while (messages := self._receive()) is not None:
            self._step_began_ns = time.monotonic_ns()
            try:
                for message in messages:
                    for event in message.events:
                        self._scheduler.submit(event)
                output = self._scheduler.step()
            except Exception:
                logger.exception("the engine failed; all sessions end")
                output = self._end_all()
            self._step_began_ns = 0
            if output or messages:  # a stream that ends has no output, but fewer sessions are open
                notices = [m.on_handled for m in messages if m.on_handled is not None]
                self._call(self._arrive, output, self._scheduler.num_sessions, notices)

    def _receive(self) -> list[_Message] | None:
        """All that has come, at once; waits only while there is nothing to compute. None: stop."""
        messages: list[_Message] = []
        timeout = self._idle_s()
        try:
            message = self._inbox.get(timeout != 0, timeout)
            while message is not None:
                messages.append(message)
                message = self._inbox.get_nowait()
            return None
        except queue.Empty:
            return messages

    def _idle_s(self) -> float | None:
        due_ns = self._scheduler.next_due_ns()
        return None if due_ns is None else max(0, due_ns - time.monotonic_ns()) / 1e9

    def _end_all(self) -> StepOutput:
        self._call(self._on_failure)
        error = Internal("the engine of the verify server failed; its log tells more")
        self._scheduler.submit(Refuse(error))
        self._scheduler.submit(EndAll(error))
        return self._scheduler.step()

    def _arrive(self, output: StepOutput, num_sessions: int, notices: list[Notice]) -> None:
        self._deliver(output, num_sessions)
        for notice in notices:
            notice()

    def _call(self, callback: Callable[..., object], *arguments: object) -> None:
        with suppress(RuntimeError):  # the loop is closed: this thread was left behind
            self._loop.call_soon_threadsafe(callback, *arguments)


def warm_up(engine: TargetEngine) -> None:
    """Runs one row, so that the first request pays for nothing that is done once."""
    sequence = engine.open()
    engine.reserve(sequence, 1)
    engine.forward([Rows(sequence, np.zeros(1, np.int32), None, "last")])
    engine.release(sequence)

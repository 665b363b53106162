"""Owns the process of one peer: it starts, answers one request at a time, and else stands still."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.compare.peers import HERE, PeerFailed, PeerSpec, prepare

# Loading may convert a model first.
LOAD_TIMEOUT_S = 900.0
CASE_TIMEOUT_S = 180.0


def start(
    spec: PeerSpec, cache: Path, models: Path, threads: int, *more: str | Path
) -> PeerProcess:
    """Runs the driver of a peer, set up in `cache` if need be. models: the exported ones; more:
    what its script is told beside them and the threads (drivers/protocol.py).

    Raises PeerFailed where it cannot be installed or loaded.
    """
    python = prepare(spec, cache)
    driver = HERE / "drivers" / f"{spec.driver}.py"
    log = cache / f"{'-'.join([spec.driver, *map(str, more[:1])])}.log"
    return PeerProcess([python, driver, models, str(threads), *more], log)


class PeerProcess:
    """A driver that runs. Between requests it is stopped, threads that spin and all, so that the
    next peer has the machine to itself."""

    def __init__(self, command: Sequence[str | Path], log: Path) -> None:
        """command: runs the driver. log: gets what it says on standard error.

        Raises PeerFailed where the peer cannot be loaded.
        """
        self._answers = b""
        with log.open("w", encoding="utf-8") as errors:
            self._child = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
            )
        try:
            ready = self._receive(LOAD_TIMEOUT_S)["ready"]
        except BaseException:
            self.close()
            raise
        self.versions: dict[str, str] = ready["versions"]
        self.dtype: str = ready["dtype"]
        self._child.send_signal(signal.SIGSTOP)

    def ask(self, request: dict[str, Any], timeout_s: float | None = None) -> dict[str, Any]:
        """The answer to one request; raises PeerFailed where there is none."""
        assert self._child.stdin is not None
        self._child.send_signal(signal.SIGCONT)
        try:
            self._child.stdin.write(json.dumps(request).encode() + b"\n")
            self._child.stdin.flush()
        except BrokenPipeError as error:
            raise PeerFailed(f"ended with status {self._child.wait()}") from error
        answer = self._receive(timeout_s or CASE_TIMEOUT_S)
        self._child.send_signal(signal.SIGSTOP)
        return answer

    def close(self) -> None:
        """Ends the process."""
        self._child.send_signal(signal.SIGCONT)
        self._child.terminate()
        try:
            self._child.wait(10)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        for pipe in (self._child.stdin, self._child.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()

    def _receive(self, timeout_s: float) -> dict[str, Any]:
        assert self._child.stdout is not None
        descriptor = self._child.stdout.fileno()
        with selectors.DefaultSelector() as selector:
            selector.register(descriptor, selectors.EVENT_READ)
            while b"\n" not in self._answers:
                if not selector.select(timeout_s):
                    raise PeerFailed(f"no answer within {timeout_s:g} s")
                data = os.read(descriptor, 1 << 16)
                if not data:
                    raise PeerFailed(f"ended with status {self._child.wait()}")
                self._answers += data
        line, _, self._answers = self._answers.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise PeerFailed(answer["error"].splitlines()[0])
        return answer

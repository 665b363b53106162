"""Owns the processes of the servers that a command starts: how they begin, how they end, and what
is said about one that ended by itself. Knows nothing of models and flags.

Each child holds one end of a pipe as its standard input and ends when the other end closes, so it
never outlives this process, not even one that was killed (see local_child.py).
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

POLL_S = 0.05
GRACE_S = 10.0
# The kernel closes the sockets of a process before it tells its parent.
NOTICE_S = 0.5


@dataclass(frozen=True, slots=True)
class Child:
    """A running server. name: for a person."""

    name: str
    process: subprocess.Popen[bytes]

    @property
    def ended(self) -> str | None:
        """How it ended, for a person; None while it runs."""
        status = self.process.poll()
        if status is None:
            return None
        if status >= 0:
            return f"{self.name} ended with exit status {status}"
        why = ", which is also how the system ends it when memory runs out"
        return (
            f"{self.name} was ended by signal {-status} ({signal.strsignal(-status)})"
            f"{why if -status == signal.SIGKILL else ''}"
        )


@contextmanager
def child(name: str, package: str, arguments: Sequence[str]) -> Iterator[Child]:
    """Runs the server of a package inside the `with` block."""
    process = subprocess.Popen(
        [sys.executable, "-m", "forerun.cli.local_child", package, *arguments],
        stdin=subprocess.PIPE,
        stdout=2,  # standard error: standard output is for results
        start_new_session=True,  # Ctrl-C reaches this process, which then ends its children
    )
    try:
        yield Child(name, process)
    finally:
        _end(process)


def end_with(first: Child, others: Sequence[Child]) -> None:
    """Has the others end as soon as the first one does: a draft server would wait for its verify
    server to come back, and the command for the draft server."""

    def watch() -> None:
        first.process.wait()
        for other in others:
            other.process.kill()

    threading.Thread(target=watch, name="child-watch", daemon=True).start()


def first_ended(children: Sequence[Child], within_s: float = NOTICE_S) -> str | None:
    """What ended the first in order that is over or ends within that time; None if all run."""
    end = time.monotonic() + within_s
    while True:
        for each in children:
            if each.ended is not None:
                return each.ended
        if time.monotonic() >= end:
            return None
        time.sleep(POLL_S)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    finally:
        if process.stdin is not None:
            process.stdin.close()

"""Owns what SIGTERM and SIGHUP mean to a command that has something to clear away."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

ENDING = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def exit_on_signals() -> Iterator[None]:
    """Has the first of these signals leave the block by SystemExit, as Ctrl-C does by an exception
    of its own, with the exit code of shells; later ones do not disturb what is then cleared away.

    A signal that is ignored or has another handler keeps it; only the main thread may set any.
    """
    main = threading.current_thread() is threading.main_thread()
    handled = [n for n in ENDING if main and signal.getsignal(n) is signal.SIG_DFL]

    def leave(number: int, frame: FrameType | None) -> NoReturn:
        for each in handled:
            signal.signal(each, signal.SIG_IGN)
        raise SystemExit(128 + number)

    for number in handled:
        signal.signal(number, leave)
    try:
        yield
    finally:
        for number in handled:
            signal.signal(number, signal.SIG_DFL)

"""Owns how long work reports itself: a bar on a terminal, else one log line per ten per cent.

Both go to standard error, so that standard output holds results alone.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

logger = logging.getLogger(__name__)

Report = Callable[[int, int], None]
"""Called with the work done and the total, in one unit; may be called as often as one likes."""


@contextmanager
def progress(description: str, unit: Literal["bytes", "items"] = "bytes") -> Iterator[Report]:
    """Shows work that goes on inside the `with` block; yields what the work calls as it proceeds.

    Without a terminal, `description` and the percentage are logged at level INFO at most eleven
    times.
    """
    if sys.stderr.isatty():
        with _bar(description, unit) as report:
            yield report
    else:
        yield _log_lines(description)


@contextmanager
def _bar(description: str, unit: Literal["bytes", "items"]) -> Iterator[Report]:
    # rich is imported here alone: without a terminal nothing needs it.
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        TextColumn,
        TimeRemainingColumn,
    )
    from rich.table import Column

    amount: ProgressColumn = DownloadColumn() if unit == "bytes" else MofNCompleteColumn()
    bar = Progress(
        TextColumn("{task.description}", table_column=Column(no_wrap=True, overflow="ellipsis")),
        BarColumn(bar_width=20),
        amount,
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    task = bar.add_task(description, total=None)

    def report(done: int, total: int) -> None:
        bar.update(task, completed=done, total=total)
        bar.start()  # not before: work that reports nothing shows nothing

    try:
        yield report
    finally:
        bar.stop()


def _log_lines(description: str) -> Report:
    last = -1

    def report(done: int, total: int) -> None:
        nonlocal last
        tenth = 10 * done // total if total > 0 else 10
        if tenth > last:
            last = tenth
            logger.info("%s: %d %%", description, tenth * 10)

    return report

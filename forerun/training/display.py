"""Owns how training shows itself: a bar on a terminal, else a log line a minute at most."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from forerun.training.trainer import Progress

logger = logging.getLogger(__name__)

LOG_EVERY_S = 60.0

Show = Callable[[float, Progress], None]


@contextmanager
def training_progress() -> Iterator[Show]:
    """Yields what to call with the share of the budget that is spent and the progress."""
    if sys.stderr.isatty():
        with _bar() as show:
            yield show
    else:
        yield _log_lines()


def summary(progress: Progress) -> str:
    """The state of training in a few words."""
    parts = [
        f"{progress.tokens} tokens",
        f"loss {progress.loss:.3f}",
        f"agreement {progress.agreement:.3f}",
    ]
    if progress.history:
        parts.append(f"{progress.history[-1]['accepted']:.2f} accepted a round, held out")
    return ", ".join(parts)


@contextmanager
def _bar() -> Iterator[Show]:
    from rich.console import Console
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    with Bar(
        TextColumn("training"),
        BarColumn(bar_width=20),
        TaskProgressColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
        console=Console(stderr=True),
        transient=True,
    ) as bar:
        task = bar.add_task("", total=1.0)

        def show(spent: float, progress: Progress) -> None:
            bar.update(task, completed=spent, description=summary(progress))

        yield show


def _log_lines() -> Show:
    last = float("-inf")

    def show(spent: float, progress: Progress) -> None:
        nonlocal last
        if time.monotonic() - last >= LOG_EVERY_S:
            last = time.monotonic()
            logger.info("training: %.0f %%, %s", 100 * spent, summary(progress))

    return show

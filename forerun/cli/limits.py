"""Owns the limits of numbers that several commands take; what is beyond them ends a command before
it starts anything."""

from __future__ import annotations

import argparse

from forerun.cli.errors import CommandError

MAX_TOKENS = 2**32 - 1  # what a request can hold
MAX_TIMEOUT_S = 1_000_000_000


def check_at_least_one(args: argparse.Namespace, *names: str) -> None:
    """Raises CommandError for the first of these arguments that is below 1, naming its flag."""
    for name in names:
        if getattr(args, name) < 1:
            flag = "--" + name.replace("_", "-")
            raise CommandError(f"{flag} is {getattr(args, name)}; it must be at least 1")


def check_max_tokens(count: int | None) -> None:
    """Raises CommandError for a --max-tokens that no server takes; None is no limit."""
    if count is not None and not 1 <= count <= MAX_TOKENS:
        raise CommandError(f"--max-tokens is {count}; it must be in 1..{MAX_TOKENS}")


def check_timeout(seconds: float | None) -> None:
    """Raises CommandError for a --timeout that is no time to wait; None is no limit."""
    if seconds is not None and not 0 < seconds <= MAX_TIMEOUT_S:
        raise CommandError(
            f"--timeout is {seconds:g}; it must be above 0 and at most {MAX_TIMEOUT_S} seconds"
        )

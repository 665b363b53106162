"""Owns where the lines of answers go: standard output, or a file. Knows nothing of their form."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from forerun.cli.errors import CommandError


class Answers:
    """Takes lines. A file keeps what it held until the first one: a run that fails before then
    takes nothing away."""

    def __init__(self, file: TextIO) -> None:
        self.file = file
        self._begun = False

    def print(self, line: str) -> None:
        """Writes one line, at once."""
        if not self._begun and self.file is not sys.stdout:
            if stat.S_ISREG(os.fstat(self.file.fileno()).st_mode):
                self.file.truncate(0)
        self._begun = True
        print(line, file=self.file, flush=True)


@contextmanager
def open_answers(path: str | None, prompts: str | None) -> Iterator[Answers]:
    """Opens `path`, standard output for None and "-". prompts: the file that they were read from.

    Raises CommandError where both are one file, OSError where it cannot be written.
    """
    if path in (None, "-"):
        if sys.stdout is None:
            raise CommandError("standard output is closed; name a file with --output")
        yield Answers(sys.stdout)
        return
    if prompts not in (None, "-") and os.path.exists(path) and os.path.samefile(path, prompts):
        raise CommandError(f"--output {path} is the file of the prompts; name another")
    with open(path, "a", encoding="utf-8") as file:
        yield Answers(file)

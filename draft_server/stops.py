"""Text of a generation: never half a character, never a token past a stop string.

Owns stop strings, applied as if tokens came one by one whatever the size of a block: the first
stop string that completes wins. Knows nothing of sessions; other stops are the verify server's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


class IncrementalText(Protocol):
    """What turns ids into text piece by piece (forerun.models.TextStream)."""

    def push(self, token_ids: Sequence[int]) -> str: ...
    def finish(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Piece:
    """Text that may be shown, and how many of the pushed tokens stay: all of them, unless a stop
    string completed (`stopped`) before the last."""

    text: str
    num_tokens: int
    stopped: bool


class StopScanner:
    """Looks for stop strings in text that comes in pieces (Knuth, Morris and Pratt, one automaton a
    string), and holds back what could still become one."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(dict.fromkeys(stops))
        self._borders = [_borders(stop) for stop in self._stops]
        self._matched = [0] * len(self._stops)
        self._held = ""

    def push(self, text: str) -> tuple[str, bool]:
        """Text to show, and whether a stop string completed; the text then ends before it. Of two
        that complete with the same character, the longer one counts."""
        self._held += text
        start = len(self._held) - len(text)
        for position in range(start, len(self._held)):
            completed = self._step(self._held[position])
            if completed:
                return self._held[: position + 1 - completed], True
        held = max(self._matched, default=0)
        shown = len(self._held) - held
        show, self._held = self._held[:shown], self._held[shown:]
        return show, False

    def finish(self) -> str:
        """What was held back: no stop string can complete any more."""
        held, self._held = self._held, ""
        return held

    def _step(self, character: str) -> int:
        """Length of the longest stop string that `character` completes, else 0."""
        completed = 0
        for index, (stop, borders) in enumerate(zip(self._stops, self._borders, strict=True)):
            matched = self._matched[index]
            while matched and stop[matched] != character:
                matched = borders[matched - 1]
            matched += stop[matched] == character
            self._matched[index] = matched
            if matched == len(stop):
                completed = max(completed, matched)
        return completed


class OutputText:
    """The text of one generation, from its ids."""

    def __init__(self, text: IncrementalText, stops: Sequence[str]) -> None:
        self._text = text
        self._scanner = StopScanner(stops) if stops else None

    def push(self, token_ids: Sequence[int]) -> Piece:
        """Call no more once a piece says `stopped`."""
        if self._scanner is None:
            return Piece(self._text.push(token_ids), len(token_ids), False)
        shown = []
        for count, token_id in enumerate(token_ids, start=1):
            text, stopped = self._scanner.push(self._text.push([token_id]))
            shown.append(text)
            if stopped:
                return Piece("".join(shown), count, True)
        return Piece("".join(shown), len(token_ids), False)

    def finish(self) -> str:
        """The rest, where no stop string ended the generation."""
        held = self._scanner.finish() if self._scanner else ""
        return held + self._text.finish()


def _borders(stop: str) -> list[int]:
    """For each prefix, the length of its longest proper prefix that is also its suffix."""
    borders = [0] * len(stop)
    matched = 0
    for index in range(1, len(stop)):
        while matched and stop[matched] != stop[index]:
            matched = borders[matched - 1]
        matched += stop[matched] == stop[index]
        borders[index] = matched
    return borders

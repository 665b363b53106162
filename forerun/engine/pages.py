"""Owns which pages of the KV pool are free; knows nothing of what is in them."""

from __future__ import annotations

from forerun.engine.interface import Sequence


class PagePool:
    """The free pages of a pool of `total` pages of `page_size` tokens each.

    Pages that were freed last are given out first, while the processor's caches still know them.
    """

    def __init__(self, total: int, page_size: int) -> None:
        self.total = total
        self.page_size = page_size
        self._free = list(range(total - 1, -1, -1))

    @property
    def free(self) -> int:
        """Pages that no sequence holds."""
        return len(self._free)

    def free_pages(self) -> tuple[int, ...]:
        """The numbers of the free pages."""
        return tuple(self._free)

    def pages_for(self, length: int) -> int:
        """Pages that `length` tokens take."""
        return -(-length // self.page_size)

    def grow(self, sequence: Sequence, length: int) -> bool:
        """Gives a sequence pages for `length` tokens; False, and no change, if too few are free."""
        missing = self.pages_for(length) - len(sequence.pages)
        if missing > len(self._free):
            return False
        for _ in range(missing):
            sequence.pages.append(self._free.pop())
        return True

    def shrink(self, sequence: Sequence, length: int) -> None:
        """Takes back the pages behind `length` tokens."""
        keep = self.pages_for(length)
        while len(sequence.pages) > keep:
            self._free.append(sequence.pages.pop())

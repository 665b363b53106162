"""Owns which pages of the KV pool are free, and how many sequences hold each of the others; knows
nothing of keys and values."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

from forerun.engine.interface import Sequence
from forerun.engine.prefix import PrefixIndex, page_key


class PagePool:
    """A pool of `total` pages of `page_size` tokens each. Every page is free, held, or cached: held
    by nobody, but kept under its name for prompts that begin alike, at most `cache_limit` of them.

    Pages that were freed last are given out first, while the processor's caches still know them;
    cached ones only when none is free. Shared pages are full, and nobody writes to them any more.
    """

    def __init__(self, total: int, page_size: int, cache_limit: int = 0) -> None:
        self.total = total
        self.page_size = page_size
        self.evicted = 0
        self._cache_limit = cache_limit
        self._free = list(range(total - 1, -1, -1))
        self._holders = [0] * total
        self._index = PrefixIndex()

    @property
    def free(self) -> int:
        """Pages with nothing in them that is of use."""
        return len(self._free)

    @property
    def cached(self) -> int:
        """Pages that no sequence holds, kept for prompts that begin alike."""
        return self._index.num_resting

    def free_pages(self) -> tuple[int, ...]:
        """The numbers of the free pages."""
        return tuple(self._free)

    def pages_for(self, length: int) -> int:
        """Pages that `length` tokens take."""
        return -(-length // self.page_size)

    def grow(self, sequence: Sequence, length: int) -> bool:
        """Gives a sequence pages for `length` tokens, if need be at the cost of cached ones; False,
        and no change, if there are too few."""
        missing = self.pages_for(length) - len(sequence.pages)
        if missing > self.free + self.cached:
            return False
        for _ in range(missing):
            if not self._free:
                self._evict()
            page = self._free.pop()
            self._holders[page] = 1
            sequence.pages.append(page)
        return True

    def shrink(self, sequence: Sequence, length: int) -> None:
        """Takes back the pages behind `length` tokens. Raises ValueError where that would leave a
        sequence to write into a shared page."""
        if length % self.page_size and length < len(sequence.keys) * self.page_size:
            raise ValueError(
                f"length is {length}, which is inside a page of {self.page_size} tokens that others"
                " may read; cut at the edge of a page, or share less"
            )
        keep = self.pages_for(length)
        while len(sequence.pages) > keep:
            self._let_go(sequence.pages.pop())
        del sequence.keys[keep:]

    def reuse(self, sequence: Sequence, token_ids: SequenceOf[int]) -> int:
        """Gives a sequence the pages of `token_ids` (its tokens from the first one on) that are
        cached or held by others, as far as they follow what it has; the tokens that it gained."""
        before = sequence.length
        # A sequence with tokens that are not shared has nothing that a shared page could follow.
        while len(sequence.keys) * self.page_size == sequence.length:
            stop = sequence.length + self.page_size
            if stop > len(token_ids):
                break
            key = page_key(_last(sequence.keys), token_ids[sequence.length : stop])
            page = self._index.find(key)
            if page is None:
                break
            self._put(sequence, len(sequence.keys), page)
            sequence.keys.append(key)
            sequence.length = stop
        return sequence.length - before

    def share(self, sequence: Sequence, token_ids: SequenceOf[int]) -> None:
        """Lets others have the full pages of a sequence. token_ids: its tokens from the first one
        on, at least `length` of them."""
        if self._cache_limit == 0:
            return
        for place in range(len(sequence.keys), sequence.length // self.page_size):
            start = place * self.page_size
            key = page_key(_last(sequence.keys), token_ids[start : start + self.page_size])
            page = self._index.find(key)
            if page is None:
                self._index.add(key, sequence.pages[place])
            else:  # two sequences computed the same at once; one copy will do
                self._put(sequence, place, page)
            sequence.keys.append(key)

    def _put(self, sequence: Sequence, place: int, page: int) -> None:
        """Makes a shared page the one at `place`, in exchange for a page of the sequence's own."""
        self._holders[page] += 1
        self._index.wake(page)
        if place < len(sequence.pages):
            self._let_go(sequence.pages[place])
            sequence.pages[place] = page
        else:
            sequence.pages.append(page)

    def _let_go(self, page: int) -> None:
        self._holders[page] -= 1
        if self._holders[page]:
            return
        if page not in self._index:
            self._free.append(page)
            return
        self._index.rest(page)
        if self.cached > self._cache_limit:
            self._evict()

    def _evict(self) -> None:
        self._free.append(self._index.evict())
        self.evicted += 1


def _last(keys: SequenceOf[bytes]) -> bytes:
    return keys[-1] if keys else b""

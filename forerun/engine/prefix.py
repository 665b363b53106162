"""Owns which pages hold which tokens, so that prompts which begin alike share them; refuses to know
who holds a page.

A page is named by the digest of all tokens up to its end: of the name of the page before it, and of
its own tokens. Keys and values of a token are a function of the tokens up to it alone, bit for bit,
so a page of the same name is the same page.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Sequence

# 256 bits: nobody finds two chains of tokens with one name, not even on purpose.
_DIGEST_BYTES = 32


def page_key(parent: bytes, token_ids: Sequence[int]) -> bytes:
    """The name of a full page. parent: the name of the page before it, b"" for the first one."""
    tokens = array("I", token_ids).tobytes()
    return hashlib.blake2b(parent + tokens, digest_size=_DIGEST_BYTES).digest()


class PrefixIndex:
    """Pages by name. Those that no sequence holds rest, and may be evicted, longest resting first.

    Whoever holds a page holds all before it and lets go of the last one first, so no page is ever
    evicted before those that follow it.
    """

    def __init__(self) -> None:
        self._pages: dict[bytes, int] = {}
        self._keys: dict[int, bytes] = {}
        self._resting: OrderedDict[int, None] = OrderedDict()

    @property
    def num_resting(self) -> int:
        """Pages that no sequence holds."""
        return len(self._resting)

    def __contains__(self, page: int) -> bool:
        return page in self._keys

    def find(self, key: bytes) -> int | None:
        """The page of that name."""
        return self._pages.get(key)

    def add(self, key: bytes, page: int) -> None:
        """Names a page that a sequence holds. Neither may be known yet."""
        self._pages[key] = page
        self._keys[page] = key

    def rest(self, page: int) -> None:
        """Nobody holds the page any more."""
        self._resting[page] = None

    def wake(self, page: int) -> None:
        """Somebody holds the page, again or as well."""
        self._resting.pop(page, None)

    def evict(self) -> int:
        """Forgets the page that has rested longest, and returns it."""
        page, _ = self._resting.popitem(last=False)
        del self._pages[self._keys.pop(page)]
        return page

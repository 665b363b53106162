"""The pages of a pool under every order of events: none lost, none with two owners, the right ones
found again."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from forerun.engine.interface import Sequence
from forerun.engine.pages import PagePool
from forerun.engine.prefix import page_key

PAGES = 8
PAGE_SIZE = 2
CACHE_LIMIT = 5

# Few tokens, so that many chains are alike.
TOKENS = st.lists(st.integers(0, 1), max_size=6)


class PoolMachine(RuleBasedStateMachine):
    """Sequences of tokens on a pool, beside a plain model: what each sequence's slots hold.

    `content` is what was last written to each slot of each page. A sequence that takes pages over
    must find its own tokens in them, whatever became of the pages in between.
    """

    sequences = Bundle("sequences")

    def __init__(self) -> None:
        super().__init__()
        self.pool = PagePool(PAGES, PAGE_SIZE, CACHE_LIMIT)
        self.tokens: dict[Sequence, list[int]] = {}
        self.content: dict[int, list[list[int] | None]] = {
            page: [None] * PAGE_SIZE for page in range(PAGES)
        }

    @rule(target=sequences, tokens=TOKENS)
    def open(self, tokens: list[int]) -> Sequence:
        sequence = Sequence()
        gained = self.pool.reuse(sequence, tokens)
        assert gained == sequence.length == len(sequence.keys) * PAGE_SIZE <= len(tokens)
        self.tokens[sequence] = tokens[:gained]
        return sequence

    @rule(sequence=sequences, tokens=TOKENS, drafted=TOKENS)
    def extend(self, sequence: Sequence, tokens: list[int], drafted: list[int]) -> None:
        """Rows of tokens and of drafts are computed; the tokens are committed, no draft is."""
        room = self.pool.free + self.pool.cached
        held = len(sequence.pages)
        length = sequence.length + len(tokens) + len(drafted)
        fits = self.pool.pages_for(length) - held <= room
        assert self.pool.grow(sequence, length) is fits
        if not fits:
            assert len(sequence.pages) == held
            return
        told = self.tokens[sequence]
        for token in [*tokens, *drafted]:
            told.append(token)
            self.write(sequence, len(told) - 1)
        del told[len(told) - len(drafted) :]
        sequence.length = len(told)
        self.pool.shrink(sequence, sequence.length)

    @rule(sequence=sequences)
    def share(self, sequence: Sequence) -> None:
        self.pool.share(sequence, self.tokens[sequence])
        assert len(sequence.keys) == sequence.length // PAGE_SIZE

    @rule(sequence=sequences, tokens=TOKENS)
    def reserve_and_reuse(self, sequence: Sequence, tokens: list[int]) -> None:
        """Pages that are reserved for a prompt's rest give way to those of others."""
        told = self.tokens[sequence]
        if not self.pool.grow(sequence, len(told) + len(tokens)):
            return
        gained = self.pool.reuse(sequence, told + tokens)
        told += tokens[:gained]
        assert sequence.length == len(told)
        self.pool.shrink(sequence, sequence.length)

    @rule(sequence=sequences, data=st.data())
    def truncate(self, sequence: Sequence, data: st.DataObject) -> None:
        length = data.draw(st.integers(0, sequence.length))
        if length % PAGE_SIZE and length < len(sequence.keys) * PAGE_SIZE:
            with pytest.raises(ValueError, match="inside a page"):
                self.pool.shrink(sequence, length)
            return
        sequence.length = length
        del self.tokens[sequence][length:]
        self.pool.shrink(sequence, length)

    @rule(sequence=consumes(sequences))
    def release(self, sequence: Sequence) -> None:
        sequence.length = 0
        self.pool.shrink(sequence, 0)
        del self.tokens[sequence]

    def write(self, sequence: Sequence, position: int) -> None:
        """A row's KV stands for all tokens up to it."""
        page = sequence.pages[position // PAGE_SIZE]
        owners = [other for other in self.tokens if page in other.pages]
        assert owners == [sequence], "a page that is written to has one owner"
        self.content[page][position % PAGE_SIZE] = self.tokens[sequence][: position + 1]

    @invariant()
    def every_sequence_reads_its_own_tokens(self) -> None:
        for sequence, tokens in self.tokens.items():
            for position in range(sequence.length):
                page = sequence.pages[position // PAGE_SIZE]
                assert self.content[page][position % PAGE_SIZE] == tokens[: position + 1]

    @invariant()
    def every_page_is_free_or_held_or_cached(self) -> None:
        held = Counter(page for sequence in self.tokens for page in sequence.pages)
        free = self.pool.free_pages()
        assert len(set(free)) == len(free) == self.pool.free
        assert not held.keys() & set(free)
        assert self.pool.free + len(held) + self.pool.cached == PAGES
        assert self.pool.cached <= CACHE_LIMIT
        for page, holders in held.items():
            sharing = [s for s in self.tokens if page in s.pages[: len(s.keys)]]
            assert holders == 1 or len(sharing) == holders, "what is not shared has one owner"

    def teardown(self) -> None:
        for sequence in self.tokens:
            sequence.length = 0
            self.pool.shrink(sequence, 0)
        assert self.pool.free + self.pool.cached == PAGES


PoolMachine.TestCase.settings = settings(max_examples=300, stateful_step_count=40, deadline=None)
test_pool = PoolMachine.TestCase


def cached_sequence(pool: PagePool, tokens: list[int]) -> Sequence:
    """A sequence that has computed and shared `tokens`, as far as they were not cached."""
    sequence = Sequence()
    pool.reuse(sequence, tokens)
    assert pool.grow(sequence, len(tokens))
    sequence.length = len(tokens)
    pool.share(sequence, tokens)
    return sequence


def release(pool: PagePool, sequence: Sequence) -> None:
    sequence.length = 0
    pool.shrink(sequence, 0)


def hit(pool: PagePool, tokens: list[int]) -> int:
    """How many of `tokens` are found; holds nothing afterwards."""
    sequence = Sequence()
    gained = pool.reuse(sequence, tokens)
    release(pool, sequence)
    return gained


def test_what_was_used_longest_ago_goes_first_and_the_end_of_a_chain_before_its_beginning() -> None:
    pool = PagePool(total=6, page_size=4, cache_limit=6)
    chains = [[n] * 12 for n in (1, 2)]
    for tokens in chains:
        release(pool, cached_sequence(pool, tokens))
    assert (pool.free, pool.cached) == (0, 6)
    assert hit(pool, chains[0]) == 12, "which makes the second one the older"
    found = []
    for length in range(4, 25, 4):
        sequence = Sequence()
        assert pool.grow(sequence, length)
        found.append((hit(pool, chains[0]), hit(pool, chains[1])))
        hit(pool, chains[0])
        release(pool, sequence)
    assert found == [(12, 8), (12, 4), (12, 0), (8, 0), (4, 0), (0, 0)]


def test_a_limit_bounds_what_nobody_holds_and_nothing_else() -> None:
    pool = PagePool(total=8, page_size=1, cache_limit=2)
    sequence = cached_sequence(pool, [1, 2, 3, 4, 5])
    other = cached_sequence(pool, [1, 2, 3, 4, 5])
    assert sequence.pages == other.pages
    release(pool, sequence)
    assert (pool.free, pool.cached, pool.evicted) == (3, 0, 0)
    release(pool, other)
    assert (pool.free, pool.cached, pool.evicted) == (6, 2, 3)
    assert hit(pool, [1, 2, 3, 4, 5]) == 2, "the beginning of a chain is worth most"


def test_no_limit_no_cache() -> None:
    pool = PagePool(total=4, page_size=1)
    release(pool, cached_sequence(pool, [1, 2]))
    assert (pool.free, pool.cached) == (4, 0)
    assert hit(pool, [1, 2]) == 0


def test_a_chain_is_found_by_all_its_tokens() -> None:
    pool = PagePool(total=8, page_size=2, cache_limit=8)
    release(pool, cached_sequence(pool, [1, 2, 3, 4]))
    assert hit(pool, [3, 4]) == 0, "the same page after nothing is another one"
    assert hit(pool, [1, 2, 3]) == 2, "pages are taken whole"
    assert hit(pool, [1, 2, 3, 4, 5]) == 4


def test_keys_tell_where_a_page_begins() -> None:
    keys = {page_key(parent, tokens) for parent in (b"", page_key(b"", [1]))
            for tokens in ([1], [1, 1], [256], [1 << 16])}  # fmt: skip
    assert len(keys) == 8

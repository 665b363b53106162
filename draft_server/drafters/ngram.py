"""Drafts by looking up what followed the latest tokens earlier in the prompt and the output, or in
the outputs of sessions before.

Owns the index of a session and the tree that its matches make. Prompt lookup
(github.com/apoorvumang/prompt-lookup-decoding), with several matches merged into one tree and the
nodes ranked by path product, which is optimal for calibrated probabilities (arXiv:2406.17276).
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from draft_server.drafters.archive import Archive
from draft_server.drafters.base import DrafterInfo, DraftState
from forerun.tree import Budget, Tree

# Earlier places looked at in a round, the longest and latest first, and how far back a match is
# measured: both bound the work, and more of either changes the ranking little.
MAX_MATCHES = 32
MAX_MATCH_LENGTH = 24
# Tokens indexed in one call, so that a long prompt does not hold up other sessions (about 8 ms).
MAX_INDEXED = 4096
# Weight of "something that did not follow before", against the square of a match length: one match
# of 1 token is then continued with probability 1/5, one of 2 with 1/2, one of 4 with 4/5.
ESCAPE_WEIGHT = 4.0

# Tokens, the place in them where a continuation begins, and the length of the match before it.
Match = tuple[Sequence[int], int, int]


class NgramIndex:
    """Earlier ends of n-grams of a few lengths, each in time and memory that do not grow.

    For every length, `latest` maps an n-gram to the last place where it ended, and `earlier[i]`
    links the place i to the place before with the same n-gram (-1: none). The n-gram at the end of
    the tokens is looked up before it is added, so a place never matches itself.
    """

    def __init__(self, lengths: Sequence[int]) -> None:
        self.lengths = tuple(sorted(lengths, reverse=True))
        self.size = 0  # tokens indexed
        self._latest: list[dict[tuple[int, ...], int]] = [{} for _ in self.lengths]
        self._earlier: list[list[int]] = [[] for _ in self.lengths]

    def extend(self, tokens: list[int], stop: int) -> None:
        """Indexes tokens[size:stop]."""
        for length, latest, earlier in zip(self.lengths, self._latest, self._earlier, strict=True):
            for end in range(self.size, stop):
                if end + 1 < length:
                    earlier.append(-1)
                    continue
                gram = tuple(tokens[end + 1 - length : end + 1])
                earlier.append(latest.get(gram, -1))
                latest[gram] = end
        self.size = stop

    def places(self, end: int) -> Iterator[int]:
        """Earlier places whose n-gram equals the one that ends at `end`, which is indexed: by
        length, the longest first, then the latest first. A place may come more than once."""
        for earlier in self._earlier:
            place = earlier[end]
            while place >= 0:
                yield place
                place = earlier[place]


@dataclass(slots=True)
class NgramState(DraftState):
    """index: over committed[:index.size]. prompt_tokens: how many of them are the prompt."""

    index: NgramIndex = field(default_factory=lambda: NgramIndex((2,)))
    prompt_tokens: int = 0


class NgramDrafter:
    """The method `ngram`: needs no model, only the committed tokens of the session.

    min_match: tokens that must match at least. min_probability: a node is proposed where the
    product of the probabilities on its path is at least this, so that nothing is drafted when
    nothing is likely. archive: where outputs go, and are looked up, once their sessions have ended.
    """

    info = DrafterInfo("ngram")

    def __init__(
        self,
        min_match: int = 1,
        min_probability: float = 0.03,
        archive: Archive | None = None,
    ) -> None:
        if min_match < 1:
            raise ValueError(f"min_match is {min_match}; it must be at least 1")
        if not 0 < min_probability <= 1:
            raise ValueError(f"min_probability is {min_probability}; it must be in (0, 1]")
        self._lengths = (min_match, 2 * min_match, 4 * min_match)
        self._min_probability = min_probability
        self._archive = archive

    def open(self, prompt_ids: Sequence[int]) -> NgramState:
        index = NgramIndex(self._lengths)
        return NgramState(list(prompt_ids), index=index, prompt_tokens=len(prompt_ids))

    def advance(self, state: NgramState, token_ids: Sequence[int]) -> None:
        state.committed.extend(token_ids)

    def draft(
        self, batch: Sequence[tuple[NgramState, Budget]], seconds: float = math.inf
    ) -> list[Tree]:
        return [self._draft(state, budget) for state, budget in batch]

    def warm(self) -> bool:
        return False

    def close(self, state: NgramState) -> None:
        if self._archive is not None:
            self._archive.add(state.committed[state.prompt_tokens :])
            state.prompt_tokens = len(state.committed)
        state.index = NgramIndex(self._lengths)

    def _draft(self, state: NgramState, budget: Budget) -> Tree:
        tokens, index = state.committed, state.index
        state.fallback = ""
        index.extend(tokens, min(len(tokens), index.size + MAX_INDEXED))
        if index.size < len(tokens):
            state.fallback = "catch_up"
            return state.root_only()
        matches = _matches(tokens, index)
        if self._archive is not None:
            matches += [
                (output, place, _match_length(tokens, output, place))
                for output, place in self._archive.following(tokens)
            ]
        if not matches or budget.nodes < 1 or budget.depth < 1:
            return state.root_only()
        return grow_tree(tokens[-1], matches, budget, self._min_probability)


def _matches(tokens: list[int], index: NgramIndex) -> list[Match]:
    """Those of a session in its own tokens, at most MAX_MATCHES."""
    lengths: dict[int, int] = {}
    for end in index.places(len(tokens) - 1):
        if end not in lengths:
            lengths[end] = _match_length(tokens, tokens, end + 1)
        if len(lengths) == MAX_MATCHES:
            break
    return [(tokens, end + 1, length) for end, length in lengths.items()]


def _match_length(tokens: Sequence[int], others: Sequence[int], place: int) -> int:
    """How many of the last tokens are those before `place` in others, at most MAX_MATCH_LENGTH."""
    longest = min(len(tokens), place, MAX_MATCH_LENGTH)
    pairs = ((tokens[-i], others[place - i]) for i in range(1, longest + 1))
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))


def grow_tree(root: int, matches: Sequence[Match], budget: Budget, min_probability: float) -> Tree:
    """The likeliest nodes of the continuations of `matches`, merged where they agree.

    Best first: products never rise towards the leaves, so the first `budget.nodes` off the heap are
    the likeliest, parents first.
    """
    token_ids, parents, confidences = [root], [-1], [1.0]
    # (-path product, depth, tie-breaker, parent node, token, confidence, matches that go its way)
    heap: list[tuple[float, int, int, int, int, float, list[Match]]] = []
    node, depth, product, here = 0, 0, 1.0, list(matches)
    ties = itertools.count()
    while True:
        if depth < budget.depth:
            for token, confidence, below in _children(here):
                path = product * confidence
                if path >= min_probability:
                    entry = (-path, depth + 1, next(ties), node, token, confidence, below)
                    heapq.heappush(heap, entry)
        if not heap or len(parents) > budget.nodes:
            return Tree(tuple(token_ids), tuple(parents), tuple(confidences))
        negative, depth, _, parent, token, confidence, here = heapq.heappop(heap)
        node, product = len(parents), -negative
        token_ids.append(token)
        parents.append(parent)
        confidences.append(confidence)


def _children(matches: Sequence[Match]) -> Iterator[tuple[int, float, list[Match]]]:
    """(token, probability, matches that go its way) for each token that followed a match.

    A match of length m weighs m squared; the probability of a token is the weight of the matches
    that it followed over that of all and ESCAPE_WEIGHT. One step down a match is one token longer.
    """
    weights: dict[int, int] = {}
    below: dict[int, list[Match]] = {}
    for tokens, place, length in matches:
        if place < len(tokens):
            token = tokens[place]
            weights[token] = weights.get(token, 0) + length * length
            below.setdefault(token, []).append((tokens, place + 1, length + 1))
    total = sum(weights.values()) + ESCAPE_WEIGHT
    for token, weight in weights.items():
        yield token, weight / total, below[token]

"""How often what a method is so and so sure of comes true, learned from every committed token.

Owns the counts, which outlast sessions, and the correction of confidences by them: trees are ranked
by the product of confidences along a path, which is the best order only as far as these are
probabilities (arXiv:2406.17276), and two methods can share a tree only if both mean the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from forerun.tree import Tree

# Confidences of a tenth are corrected together, and depths from this one on.
BINS = 10
DEPTHS = 8
# Hits, as many as were expected, that a correction begins with: so few nodes cannot move it far.
PRIOR_HITS = 20.0


@dataclass(slots=True)
class Outcomes:
    """Nodes whose parent came true. nodes: their number. expected: the sum of their confidences.
    hits: how many came true themselves."""

    nodes: int = 0
    expected: float = 0.0
    hits: int = 0

    @property
    def correction(self) -> float:
        return (self.hits + PRIOR_HITS) / (self.expected + PRIOR_HITS)


class Calibration:
    """The counts of one method. Written by one thread; another may read sums."""

    def __init__(self) -> None:
        self._outcomes = [[Outcomes() for _ in range(BINS)] for _ in range(DEPTHS)]

    def learn(self, tree: Tree, token_ids: Sequence[int]) -> None:
        """token_ids: what came behind the root, whether or not the tree was verified."""
        confidences = tree.confidences
        if confidences is None:
            return
        children = tree.children()
        node: int | None = 0
        for depth, token_id in enumerate(token_ids, start=1):
            if node is None:
                return
            here, node = node, None
            for child in children[here]:
                outcomes = self._of(depth, confidences[child])
                outcomes.nodes += 1
                outcomes.expected += confidences[child]
                if tree.token_ids[child] == token_id:
                    outcomes.hits += 1
                    node = child

    def correct(self, tree: Tree) -> Tree:
        """The tree with corrected confidences, its likeliest nodes first."""
        if tree.confidences is None or tree.num_nodes == 0:
            return tree
        depths, confidences = tree.depths(), [1.0]
        for depth, confidence in list(zip(depths, tree.confidences, strict=True))[1:]:
            correction = self._of(depth, confidence).correction
            confidences.append(min(1.0, confidence * correction))
        chances = Tree(tree.token_ids, tree.parents, tuple(confidences)).chances()
        order = sorted(range(len(chances)), key=lambda node: (-chances[node], depths[node], node))
        places = {node: place for place, node in enumerate(order)}
        return Tree(
            tuple(tree.token_ids[node] for node in order),
            tuple(places.get(tree.parents[node], -1) for node in order),
            tuple(confidences[node] for node in order),
        )

    def by_depth(self) -> Iterable[tuple[int, Outcomes]]:
        """The sums of each depth, 1 and up; the last one holds all that are deeper."""
        for depth, bins in enumerate(self._outcomes, start=1):
            yield (
                depth,
                Outcomes(
                    sum(outcomes.nodes for outcomes in bins),
                    sum(outcomes.expected for outcomes in bins),
                    sum(outcomes.hits for outcomes in bins),
                ),
            )

    def _of(self, depth: int, confidence: float) -> Outcomes:
        return self._outcomes[min(depth, DEPTHS) - 1][min(int(confidence * BINS), BINS - 1)]

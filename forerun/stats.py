"""Counts of one session, and the two rates that are read from them.

Owns the denominators: the bonus token is in neither `drafted` nor `accepted`, and depth d is
counted per round, not per node. Knows nothing of time.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from forerun.tree import Tree


@dataclass(slots=True)
class SessionStats:
    """Counts of one session.

    rounds: rounds with at least one proposed node; plain_steps: steps of plain decoding.
    drafted / accepted: nodes that were proposed and verified / accepted, roots not counted.
    drafted_by_depth[d] / accepted_by_depth[d]: rounds that proposed / accepted a node of depth d+1.
    emitted: tokens emitted, the first one and bonus tokens included.
    stale_trees: trees dropped since they were for another round or length.
    """

    rounds: int = 0
    plain_steps: int = 0
    drafted: int = 0
    accepted: int = 0
    drafted_by_depth: list[int] = field(default_factory=list)
    accepted_by_depth: list[int] = field(default_factory=list)
    emitted: int = 0
    stale_trees: int = 0

    def record_round(self, tree: Tree, accepted: int, emitted: int) -> None:
        """Counts a verdict: `accepted` nodes of `tree` and `emitted` tokens, both as cut where the
        session ended. A tree without proposals counts as a plain step."""
        self.emitted += emitted
        if tree.num_nodes == 0:
            self.plain_steps += 1
            return
        self.rounds += 1
        self.drafted += tree.num_nodes
        self.accepted += accepted
        _count_depths(self.drafted_by_depth, tree.max_depth)
        _count_depths(self.accepted_by_depth, accepted)

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted over drafted nodes; None when nothing was drafted."""
        return self.accepted / self.drafted if self.drafted else None

    @property
    def mean_accepted_length(self) -> float | None:
        """Accepted nodes a round, bonus token not counted; None without a round."""
        return self.accepted / self.rounds if self.rounds else None


def _count_depths(counts: list[int], depth: int) -> None:
    counts.extend([0] * (depth - len(counts)))
    for index in range(depth):
        counts[index] += 1

"""The token tree: what a drafter proposes and a target verifies.

Owns the shape of a tree, the rules that make one valid, and greedy verification. Knows nothing of
models, arrays or messages. The encoding follows SpecInfer (arXiv:2305.09781): nodes in an order
where parents precede children, node 0 the root.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from forerun.errors import InvalidTree


@dataclass(frozen=True, slots=True)
class Budget:
    """The largest tree that is wanted: proposed nodes (root not counted) and depth (root = 0)."""

    nodes: int
    depth: int


@dataclass(frozen=True, slots=True)
class Tree:
    """A tree of proposed tokens; entry i of each tuple belongs to node i.

    token_ids: [n], 0 to vocab_size - 1; token_ids[0] repeats the last committed token.
    parents: [n]; parents[0] is -1, parents[i] is in 0..i-1. Siblings carry different tokens.
    confidences: [n], probability (0 to 1) of each node given its parent, the root's being 1; or
    None. The constructor checks nothing; `validate` does.
    """

    token_ids: tuple[int, ...]
    parents: tuple[int, ...]
    confidences: tuple[float, ...] | None = None

    @classmethod
    def root_only(cls, token_id: int) -> Tree:
        """A tree without proposals: it asks for one plain decoding step."""
        return cls((token_id,), (-1,))

    @classmethod
    def chain(cls, token_ids: Sequence[int]) -> Tree:
        """One path; token_ids[0] is the root."""
        return cls(tuple(token_ids), tuple(range(-1, len(token_ids) - 1)))

    @property
    def num_nodes(self) -> int:
        """Proposed nodes, the root not counted."""
        return len(self.token_ids) - 1

    @property
    def max_depth(self) -> int:
        return max(self.depths())

    def first(self, nodes: int) -> Tree:
        """The root and the first `nodes` nodes: a tree as well, since parents come before their
        children."""
        confidences = self.confidences and self.confidences[: nodes + 1]
        return Tree(self.token_ids[: nodes + 1], self.parents[: nodes + 1], confidences)

    def depths(self) -> list[int]:
        """[n]: the distance of each node from the root."""
        depths = [0]
        for parent in self.parents[1:]:
            depths.append(depths[parent] + 1)
        return depths

    def chances(self, default: float = 1.0) -> list[float]:
        """[n]: how likely each node is accepted: the product over its path. default: probability of
        a node given its parent, where the tree has no confidences."""
        steps = self.confidences or (default,) * len(self.token_ids)
        chances = [1.0]
        for node in range(1, len(self.token_ids)):
            chances.append(chances[self.parents[node]] * steps[node])
        return chances

    def children(self) -> list[list[int]]:
        """[n]: the children of each node, ascending."""
        children: list[list[int]] = [[] for _ in self.parents]
        for node, parent in enumerate(self.parents[1:], start=1):
            children[parent].append(node)
        return children

    def path(self, node: int) -> list[int]:
        """Node indices from depth 1 down to `node`; empty for the root."""
        path = []
        while node > 0:
            path.append(node)
            node = self.parents[node]
        return path[::-1]


class TreeFields(Protocol):
    """What `validate` reads: a Tree, or the message of the same name."""

    @property
    def token_ids(self) -> Sequence[int]: ...
    @property
    def parents(self) -> Sequence[int]: ...
    @property
    def confidences(self) -> Sequence[float] | None: ...


def validate(
    tree: TreeFields,
    *,
    vocab_size: int,
    max_nodes: int,
    max_depth: int,
    root_token_id: int,
    field: str = "tree",
) -> None:
    """Raises InvalidTree, naming the first field at fault (such as "tree.parents[3]").

    `field` is the path of the tree in its message. Sizes are checked before anything is walked, so
    the work is bounded by max_nodes whatever the peer sent.
    """
    token_ids, parents = tree.token_ids, tree.parents
    _validate_sizes(tree, max_nodes, field)
    if parents[0] != -1:
        raise _invalid(f"{field}.parents[0]", f"is {parents[0]}; the root's parent must be -1")
    if token_ids[0] != root_token_id:
        raise _invalid(
            f"{field}.token_ids[0]",
            f"is {token_ids[0]}; the root must repeat the last committed token {root_token_id}",
        )
    depths = [0]
    seen: set[tuple[int, int]] = set()
    for node in range(1, len(token_ids)):
        token_id, parent = token_ids[node], parents[node]
        if parent == -1:
            raise _invalid(f"{field}.parents[{node}]", "is -1; only node 0 is a root")
        if not 0 <= parent < node:
            raise _invalid(
                f"{field}.parents[{node}]", f"is {parent}; a parent must be in 0..{node - 1}"
            )
        if not 0 <= token_id < vocab_size:
            raise _invalid(
                f"{field}.token_ids[{node}]",
                f"is {token_id}; a token id must be in 0..{vocab_size - 1}",
            )
        if (parent, token_id) in seen:
            raise _invalid(
                f"{field}.token_ids[{node}]",
                f"is {token_id}, as of another child of node {parent}; siblings must differ",
            )
        depths.append(depths[parent] + 1)
        if depths[node] > max_depth:
            raise _invalid(
                f"{field}.parents[{node}]",
                f"puts the node at depth {depths[node]}; at most {max_depth} is allowed",
            )
        seen.add((parent, token_id))


def _validate_sizes(tree: TreeFields, max_nodes: int, field: str) -> None:
    size = len(tree.token_ids)
    if size == 0:
        raise _invalid(f"{field}.token_ids", "is empty; a tree holds at least its root")
    if size > max_nodes + 1:
        raise _invalid(
            f"{field}.token_ids",
            f"has {size} entries; at most {max_nodes + 1} (the root and {max_nodes} nodes)",
        )
    if len(tree.parents) != size:
        raise _invalid(
            f"{field}.parents",
            f"has {len(tree.parents)} entries; it must have {size}, as token_ids",
        )
    if tree.confidences and len(tree.confidences) != size:
        raise _invalid(
            f"{field}.confidences",
            f"has {len(tree.confidences)} entries; it must have none or {size}, as token_ids",
        )


def _invalid(field: str, description: str) -> InvalidTree:
    return InvalidTree.for_field(field, description)


def verify_greedy(tree: Tree, predictions: Sequence[int]) -> tuple[list[int], int]:
    """The longest path that equals the target's own argmax, and the bonus token after it.

    predictions: [n], the target's argmax after node i. Returns the accepted node indices from depth
    1 downwards (root excluded) and the target's own next token. `tree` must be valid.
    """
    node = 0
    accepted = []
    # Children come after their parents and siblings differ, so one pass meets the whole path.
    for child in range(1, len(tree.token_ids)):
        if tree.parents[child] == node and tree.token_ids[child] == predictions[node]:
            accepted.append(child)
            node = child
    return accepted, int(predictions[node])

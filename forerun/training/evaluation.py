"""Owns the measurement of a head: how many of its drafts the target's greedy answer confirms.

Held-out answers are the target's own greedy ones, so a draft is right where it equals the document,
and no server is needed. Drafts of all rows of a document are made at once; then the rounds that a
session would have had are walked: each emits what was accepted and one token more.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from forerun.training.head import Head, KeysValues
from forerun.training.unroll import Example, attend


@dataclass(frozen=True, slots=True)
class DraftShape:
    """How a round is drafted: the `nodes` likeliest paths of a tree `depth` deep, in which the
    `breadth` likeliest nodes of each depth get `breadth` children."""

    nodes: int
    breadth: int
    depth: int


CHAIN = DraftShape(nodes=4, breadth=1, depth=4)
TREE = DraftShape(nodes=8, breadth=4, depth=5)


@dataclass(slots=True)
class Acceptance:
    """Counts over rounds. by_depth[d]: rounds that accepted a node of depth d + 1."""

    rounds: int = 0
    by_depth: list[int] = field(default_factory=list)

    @property
    def mean(self) -> float:
        """Accepted nodes a round, the bonus token not counted; 0 without a round."""
        return sum(self.by_depth) / self.rounds if self.rounds else 0.0

    def share(self, depth: int) -> float:
        """Of the rounds, those that accepted a node of depth + 1; 0 without a round."""
        reached = self.by_depth[depth] if depth < len(self.by_depth) else 0
        return reached / self.rounds if self.rounds else 0.0

    def add(self, accepted: int) -> None:
        self.rounds += 1
        self.by_depth += [0] * (accepted - len(self.by_depth))
        for depth in range(accepted):
            self.by_depth[depth] += 1


@torch.no_grad()
def measure(
    head: Head, examples: Iterable[Example], token_embeddings: Tensor, shape: DraftShape
) -> Acceptance:
    """Acceptance over the examples. token_embeddings: [n, hidden], of the head's vocabulary."""
    acceptance = Acceptance()
    for example in examples:
        accepted = accepted_lengths(head, example, token_embeddings, shape).tolist()
        row = 0
        while row < len(accepted):
            acceptance.add(accepted[row])
            row += accepted[row] + 1
    return acceptance


@torch.no_grad()
def accepted_lengths(
    head: Head, example: Example, token_embeddings: Tensor, shape: DraftShape
) -> Tensor:
    """int64 [num_rows]: what a round whose root is the token after each row would accept."""
    first, rows = example.first, example.num_rows
    if rows < 1:
        return torch.zeros(0, dtype=torch.int64)
    end = first + rows
    positions = torch.arange(end)
    fused = head.fuse(example.taps[:end])
    residual, entering = head.enter(example.embeddings[1 : end + 1], fused)
    context = head.keys_values(entering, positions)
    positions = positions[first:]
    visible = positions + 1
    queries = head.queries(entering[first:], positions)
    output = head.finish(residual[first:], attend(queries, context, [], visible))

    # Level by level. A beam holds the nodes that are expanded, [rows, beam]; the root is one.
    outputs = output[:, None]
    log_probabilities = torch.zeros(rows, 1)
    is_right = torch.ones(rows, 1, dtype=torch.bool)
    own: list[KeysValues] = []  # of the beam's paths, each [rows, beam, kv_heads, head_dim]
    all_scores, all_right = [], []
    for depth in range(shape.depth):
        beam = outputs.shape[1]
        children = head.scores(outputs).log_softmax(-1).topk(shape.breadth, -1)
        scores = (log_probabilities[..., None] + children.values).flatten(1)
        tokens = children.indices.flatten(1)
        labels = _labels_from(head, example, depth)
        right = is_right.repeat_interleave(shape.breadth, 1) & (tokens == labels[:, None])
        all_scores.append(scores)
        all_right.append(right)
        if depth + 1 == shape.depth:
            break
        best = scores.topk(min(shape.breadth, scores.shape[1]), -1).indices
        parents = best // shape.breadth
        log_probabilities, is_right = scores.gather(1, best), right.gather(1, best)
        own = [(_of_parents(k, parents), _of_parents(v, parents)) for k, v in own]
        beam = parents.shape[1]
        at = (positions + depth + 1)[:, None].expand(rows, beam)
        residual, entering = head.enter(
            token_embeddings[tokens.gather(1, best)], _of_parents(outputs, parents)
        )
        own.append(head.keys_values(entering, at))
        attended = attend(
            head.queries(entering, at).flatten(0, 1),
            context,
            [(k.flatten(0, 1), v.flatten(0, 1)) for k, v in own],
            visible.repeat_interleave(beam),
        )
        outputs = head.finish(residual, attended.view(rows, beam, -1))

    scores, right = torch.cat(all_scores, 1), torch.cat(all_right, 1)
    # Products of probabilities only fall along a path, so the likeliest nodes form a tree, and the
    # right ones among them a path.
    kept = scores.topk(min(shape.nodes, scores.shape[1]), -1).indices
    return right.gather(1, kept).sum(1)


def _labels_from(head: Head, example: Example, depth: int) -> Tensor:
    """int64 [num_rows]: the document's draft id at depth + 1 below each row's root; -1 beyond."""
    labels = torch.full((example.num_rows,), -1, dtype=torch.int64)
    there = head.vocabulary.draft_ids(example.token_ids[example.first + 2 + depth :])
    labels[: len(there)] = there
    return labels


def _of_parents(nodes: Tensor, parents: Tensor) -> Tensor:
    """[rows, beam, ...] by [rows, n] indices into the beam → [rows, n, ...]."""
    return nodes[torch.arange(len(nodes))[:, None], parents]

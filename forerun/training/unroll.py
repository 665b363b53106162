"""Owns the loss of a document: the head runs on its own outputs for some steps, as in use.

Row t of step 0 sees the target's taps at t; in step k it stands at position t + k and takes its own
output of step k - 1 in the place of the taps, and the document's token at t + 1 + k. It attends to
the rows of step 0 up to t and to its own earlier steps: what a chain that was begun at t would see
(training-time test, arXiv:2503.01840). The teacher is the target's distribution, restricted to the
tokens that are taught; others count for nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from forerun.training.head import Head, KeysValues


@dataclass(frozen=True, slots=True)
class Example:
    """A document as the head is trained on it; n tokens.

    embeddings: float32 [n, hidden], of the tokens. taps: float32 [n, taps, hidden]. first: the
    first row whose outcome counts, the prompt's last token. token_ids: int64 [n], the target's;
    labels: int64 [n], their ids among the tokens that are taught, -1 for others. final: float32
    [n - first, hidden], the target's states after the final norm from `first` on; teacher: float32
    [n - first, taught], its probabilities of the token that follows each.
    """

    embeddings: Tensor
    taps: Tensor
    first: int
    token_ids: Tensor
    labels: Tensor
    final: Tensor
    teacher: Tensor

    @property
    def num_rows(self) -> int:
        """Rows that score a token of the document in step 0."""
        return len(self.labels) - 2 - self.first


def attend(
    queries: Tensor, context: KeysValues, own: Sequence[KeysValues], visible: Tensor
) -> Tensor:
    """Attention of rows over a context that they share and over keys of their own.

    queries: [rows, heads, head_dim]. context: each [length, kv_heads, head_dim], of which row i
    sees the first visible[i]. own: for each step, each [rows, kv_heads, head_dim], where a row sees
    itself alone. Returns [rows, heads * head_dim].
    """
    keys, values = context
    num_rows, num_heads, head_dim = queries.shape
    kv_heads = keys.shape[1]
    # [kv_heads, heads a kv head, rows, head_dim]
    grouped = queries.view(num_rows, kv_heads, -1, head_dim).permute(1, 2, 0, 3) * head_dim**-0.5
    shared = grouped @ keys.permute(1, 2, 0)[:, None]
    hidden = torch.arange(len(keys)) >= visible[:, None]
    shared = shared.masked_fill(hidden, float("-inf"))
    single = [(grouped * key.transpose(0, 1)[:, None]).sum(-1, keepdim=True) for key, _ in own]
    weights = torch.cat([shared, *single], -1).softmax(-1)
    attended = weights[..., : len(keys)] @ values.transpose(0, 1)[:, None]
    for step, (_, value) in enumerate(own):
        weight = weights[..., len(keys) + step : len(keys) + step + 1]
        attended = attended + weight * value.transpose(0, 1)[:, None]
    return attended.permute(2, 0, 1, 3).reshape(num_rows, num_heads * head_dim)


def unroll(head: Head, example: Example, steps: int) -> Iterator[Tensor]:
    """Yields the outputs of each step, [num_rows - k, hidden]: a row less a step, since the last
    one's token is beyond the document."""
    first, num_rows = example.first, example.num_rows
    end = first + num_rows
    positions = torch.arange(end)
    fused = head.fuse(example.taps[:end])
    residual, entering = head.enter(example.embeddings[1 : end + 1], fused)
    context = head.keys_values(entering, positions)
    visible = positions[first:] + 1
    queries = head.queries(entering[first:], positions[first:])
    output = head.finish(residual[first:], attend(queries, context, [], visible))
    yield output
    own: list[KeysValues] = []
    for step in range(1, steps):
        rows = num_rows - step
        if rows < 1:
            return
        own = [(keys[:rows], values[:rows]) for keys, values in own]
        positions = torch.arange(first + step, first + step + rows)
        embeddings = example.embeddings[first + step + 1 : first + step + 1 + rows]
        residual, entering = head.enter(embeddings, output[:rows])
        own.append(head.keys_values(entering, positions))
        queries = head.queries(entering, positions)
        output = head.finish(residual, attend(queries, context, own, visible[:rows]))
        yield output


def loss(head: Head, example: Example, steps: int, decay: float) -> tuple[Tensor, Tensor]:
    """The sum over steps and rows of the cross-entropy and of the distance between output and the
    target's state there (the mean over its elements of smooth L1), each as the head weights them
    and step k by decay^k; and, int64 [steps], in how many rows of each step the head's best token
    was the document's.
    """
    outputs, labels, finals, teachers, weights = [], [], [], [], []
    for step, output in enumerate(unroll(head, example, steps)):
        rows = len(output)
        outputs.append(output)
        labels.append(example.labels[example.first + 2 + step :])
        finals.append(example.final[1 + step : 1 + step + rows])
        teachers.append(example.teacher[1 + step : 1 + step + rows])
        weights.append(torch.full((rows,), decay**step))
    # Scores are most of the cost: all steps at once, and none for rows that count for nothing.
    output, label, weight = torch.cat(outputs), torch.cat(labels), torch.cat(weights)
    kept = label >= 0
    scores = head.taught_scores(output[kept])
    entropies = functional.cross_entropy(scores, torch.cat(teachers)[kept], reduction="none")
    total = head.token_weight * (entropies * weight[kept]).sum()
    if head.feature_weight:
        misses = functional.smooth_l1_loss(output, torch.cat(finals), reduction="none").mean(-1)
        total = total + head.feature_weight * (misses * weight).sum()
    right = torch.zeros(len(label), dtype=torch.bool)
    right[kept] = scores.detach().argmax(-1) == label[kept]
    by_step = [int(hits.sum()) for hits in torch.split(right, [len(rows) for rows in outputs])]
    hits = torch.tensor(by_step + [0] * (steps - len(by_step)))
    return total, hits

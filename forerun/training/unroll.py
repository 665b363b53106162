"""Owns the loss of documents: the head runs on its own outputs for some steps, as in use.

Row t of step 0 sees the target's taps at t; in step k it stands at position t + k and takes its own
output of step k - 1 in the place of the taps, and its document's token at t + 1 + k. It attends to
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
    grouped = queries.view(num_rows, kv_heads, num_heads // kv_heads, head_dim)
    grouped = grouped.permute(1, 2, 0, 3) * head_dim**-0.5
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


@dataclass(slots=True)
class _Chains:
    """The chains of a document, one from each of its rows.

    count: those that go on in the present step. context: keys and values of step 0; own: those of
    the steps after it, of the chains that went on then.
    """

    example: Example
    count: int
    context: KeysValues
    own: list[KeysValues]

    def positions(self, step: int) -> Tensor:
        begin = self.example.first + step
        return torch.arange(begin, begin + self.count)

    def embeddings(self, step: int) -> Tensor:
        begin = self.example.first + step + 1
        return self.example.embeddings[begin : begin + self.count]

    def attend(self, queries: Tensor) -> Tensor:
        own = [(keys[: self.count], values[: self.count]) for keys, values in self.own]
        return attend(queries, self.context, own, self.positions(0) + 1)


def unroll(head: Head, examples: Sequence[Example], steps: int) -> Iterator[Sequence[Tensor]]:
    """Yields the outputs of each step by document, [num_rows - k, hidden]: a row less a step, since
    the last one's token is beyond the document. Documents share matrix products, which are faster
    with more rows, and see nothing of each other."""
    ends = [example.first + example.num_rows for example in examples]
    pairs = list(zip(examples, ends, strict=True))
    positions = torch.cat([torch.arange(end) for end in ends])
    asking = torch.cat([torch.arange(end) >= example.first for example, end in pairs])
    fused = head.fuse(torch.cat([example.taps[:end] for example, end in pairs]))
    embeddings = torch.cat([example.embeddings[1 : end + 1] for example, end in pairs])
    residual, entering = head.enter(embeddings, fused)
    keys, values = head.keys_values(entering, positions)
    contexts = zip(torch.split(keys, ends), torch.split(values, ends), strict=True)
    documents = [
        _Chains(example, example.num_rows, context, [])
        for example, context in zip(examples, contexts, strict=True)
    ]
    outputs = _outputs(head, documents, residual[asking], entering[asking], positions[asking])
    yield outputs
    for step in range(1, steps):
        for document in documents:
            document.count = max(document.count - 1, 0)
        counts = [document.count for document in documents]
        if not any(counts):
            return
        positions = torch.cat([document.positions(step) for document in documents])
        embeddings = torch.cat([document.embeddings(step) for document in documents])
        hidden = torch.cat([output[:n] for output, n in zip(outputs, counts, strict=True)])
        residual, entering = head.enter(embeddings, hidden)
        keys, values = head.keys_values(entering, positions)
        new = zip(torch.split(keys, counts), torch.split(values, counts), strict=True)
        for document, own in zip(documents, new, strict=True):
            document.own.append(own)
        outputs = _outputs(head, documents, residual, entering, positions)
        yield outputs


def _outputs(
    head: Head, documents: Sequence[_Chains], residual: Tensor, entering: Tensor, positions: Tensor
) -> Sequence[Tensor]:
    """The outputs by document, of the rows of all."""
    counts = [document.count for document in documents]
    queries = torch.split(head.queries(entering, positions), counts)
    attended = [d.attend(asked) for d, asked in zip(documents, queries, strict=True)]
    return torch.split(head.finish(residual, torch.cat(attended)), counts)


def loss(
    head: Head, examples: Sequence[Example], steps: int, decay: float
) -> tuple[Tensor, Tensor]:
    """The sum over steps and rows of the cross-entropy and of the distance between output and the
    target's state there (the mean over its elements of smooth L1), each as the head weights them
    and step k by decay^k; and, int64 [steps], in how many rows of each step the head's best token
    was the document's.
    """
    outputs, labels, finals, teachers, weights, steps_rows = [], [], [], [], [], []
    for step, by_document in enumerate(unroll(head, examples, steps)):
        for example, output in zip(examples, by_document, strict=True):
            rows = len(output)
            outputs.append(output)
            labels.append(example.labels[example.first + 2 + step :][:rows])
            finals.append(example.final[1 + step : 1 + step + rows])
            teachers.append(example.teacher[1 + step : 1 + step + rows])
            weights.append(torch.full((rows,), decay**step))
        steps_rows.append(sum(map(len, by_document)))
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
    by_step = [int(hits.sum()) for hits in torch.split(right, steps_rows)]
    hits = torch.tensor(by_step + [0] * (steps - len(by_step)))
    return total, hits

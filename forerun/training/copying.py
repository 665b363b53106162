"""Owns attention heads that copy before they are trained.

Answers repeat what stands before them: names, phrases, whole lists. A layer finds out late that it
can look there, since queries, keys and values help only where all of them fit (induction heads,
arXiv:2209.11895). So the attention heads that a draft head has beyond those of its target begin
with weights found by least squares: a row asks for earlier rows whose own token is the one that it
proposes a successor for, and proposes the token beside the one there, which came next.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from forerun.training.unroll import Example, unroll

if TYPE_CHECKING:
    from forerun.training.eagle3 import Eagle3Head

# The rotation by position shall leave what is compared as it is, so far back.
REACH = 512
# Between rows of the same token, before softmax. Other query heads of a group ask more or less
# sharply, lest all of them learn the same.
SHARPNESS = 10.0
SHARPER = (0.7, 1.0, 1.4)
# What the copied token gains in the scores where all attention is on it.
GAIN = 3.5
# Of the fused state's energy, for the code of the row's own token: too little to disturb what was
# there before.
SHARE = 1e-3
_SEED = 1


def begin_copying(head: Eagle3Head, groups: int, examples: Sequence[Example]) -> None:
    """Sets the weights of the last `groups` key-value heads of `head`, which are 0, and of their
    query heads; a row's own token is written into the state that `fc` gives it, at the expense of
    the directions that vary least. Examples show what states and tokens are like.

    Leaves the head as it is where its rotation has no slow part, or there are no rows.
    """
    slow = torch.nonzero(head.inverse_frequencies * REACH < 1)[:, 0]
    rows = _Rows.of(head, examples)
    if not len(slow) or rows is None:
        return
    dims = torch.cat([slow, slow + head.shape.head_dim // 2])
    with torch.no_grad():
        codes = _Codes.of(rows.own, len(dims) * groups)
        _write_own_token(head, rows, codes.of_tokens(rows.own))
        _attend_to_own_token(head, groups, rows, codes, dims)
        _propose_what_is_attended(head, groups, rows, examples)


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows of documents but their first, which attracts attention as it is.

    taps: float32 [n, taps, hidden]. own, following: the normed embeddings of a row's own token and
    of the one after it, [n, hidden]. tokens: embeddings, normed, of all the tokens of the head's
    vocabulary that occur, [m, hidden]; draft_ids, counts: [m].
    """

    taps: Tensor
    own: Tensor
    following: Tensor
    tokens: Tensor
    draft_ids: Tensor
    counts: Tensor

    @classmethod
    @torch.no_grad()
    def of(cls, head: Eagle3Head, examples: Sequence[Example]) -> _Rows | None:
        """None for no row with a token that can be proposed."""
        used = [example for example in examples if len(example.token_ids) > 2]
        labels = torch.cat([e.labels[1:] for e in used]) if used else torch.zeros(0)
        if not (labels >= 0).any():
            return None
        norm = head.midlayer.input_layernorm
        embeddings = torch.cat([e.embeddings[1:] for e in used])
        draft_ids, inverse, counts = torch.unique(labels, return_inverse=True, return_counts=True)
        where = torch.zeros(len(draft_ids), dtype=torch.int64)
        where[inverse] = torch.arange(len(inverse))
        known = draft_ids >= 0
        return cls(
            taps=torch.cat([e.taps[1:-1] for e in used]),
            own=norm(torch.cat([e.embeddings[1:-1] for e in used])),
            following=norm(torch.cat([e.embeddings[2:] for e in used])),
            tokens=norm(embeddings[where[known]]),
            draft_ids=draft_ids[known],
            counts=counts[known],
        )


@dataclass(frozen=True, slots=True)
class _Codes:
    """Short codes of tokens, as different from each other as they can be: random projections of
    embeddings whose variance is the same in all directions. Their norm is 1 in the mean."""

    mean: Tensor
    projection: Tensor

    @classmethod
    def of(cls, embeddings: Tensor, size: int) -> _Codes:
        mean = embeddings.mean(0)
        centred = embeddings - mean
        variances, directions = torch.linalg.eigh(centred.T @ centred / len(centred))
        whiten = directions / (variances + 1e-2 * variances[-1]).sqrt() @ directions.T
        random = torch.randn(len(mean), size, generator=torch.Generator().manual_seed(_SEED))
        projection = whiten @ torch.linalg.qr(random)[0]
        return cls(mean, projection / (centred @ projection).norm(dim=1).mean())

    def of_tokens(self, embeddings: Tensor) -> Tensor:
        return (embeddings - self.mean) @ self.projection


def _write_own_token(head: Eagle3Head, rows: _Rows, codes: Tensor) -> None:
    """The first tap, two layers above the embedding, still tells its token."""
    fc, hidden = head.fc.weight, head.shape.hidden
    fused = head.fuse(rows.taps)
    _, directions = torch.linalg.eigh(fused.T @ fused)
    room = directions[:, : codes.shape[1]]
    reading = _least_squares(rows.taps[:, 0], codes, 1e-3)
    told = (rows.taps[:, 0] @ reading).norm(dim=1).mean()
    scale = math.sqrt(SHARE) * fused.norm(dim=1).mean() / told
    fc.sub_(room @ (room.T @ fc))
    fc[:, :hidden] += scale * room @ reading.T


def _attend_to_own_token(
    head: Eagle3Head, groups: int, rows: _Rows, codes: _Codes, dims: Tensor
) -> None:
    shape = head.shape
    size, group = shape.head_dim, shape.heads // shape.kv_heads
    states = head.midlayer.hidden_norm(head.fuse(rows.taps))
    asking = torch.cat([rows.following, states], 1)
    queries = _least_squares(asking, codes.of_tokens(rows.following), 1e-4)
    keys = _least_squares(states, codes.of_tokens(rows.own), 1e-3)
    # So that the product is SHARPNESS after the division by the root of the size.
    scale = math.sqrt(SHARPNESS * math.sqrt(size))
    parts = torch.arange(queries.shape[1]).chunk(groups)
    for kv_head, part in enumerate(parts, shape.kv_heads - groups):
        query, key = queries[:, part], keys[:, part]
        query = query * scale / (asking @ query).norm(dim=1).mean()
        key = key * scale / (states @ key).norm(dim=1).mean()
        _weight(head, "k")[kv_head * size + dims, shape.hidden :] = key.T
        for i in range(group):
            at = (kv_head * group + i) * size + dims
            _weight(head, "q")[at] = query.T * SHARPER[i % len(SHARPER)]


def _propose_what_is_attended(
    head: Eagle3Head, groups: int, rows: _Rows, examples: Sequence[Example]
) -> None:
    """Values are those few coordinates of an embedding from which its own score can best be raised,
    the frequent tokens' above all."""
    shape = head.shape
    size, group = shape.head_dim, shape.heads // shape.kv_heads
    scorers = head.lm_head.weight * head.norm.weight / _output_size(head, examples)
    gram = scorers.T @ scorers
    own = scorers[rows.draft_ids]
    raising = torch.linalg.solve(_damped(gram, 1e-2), own.T).T
    raising = raising / (raising * own).sum(1, keepdim=True)
    weights = rows.counts[:, None].float().sqrt()
    raising = raising - (raising * weights).sum(0) / weights.sum()
    mapping = _least_squares(rows.tokens * weights, raising * weights, 1e-3)
    mapped = rows.tokens @ mapping
    directions = torch.linalg.svd(mapped * weights, full_matrices=False)[2][: size * groups].T
    raised = (mapped @ directions @ directions.T * own).sum(1).mean()
    for i in range(groups):
        kv_head, columns = shape.kv_heads - groups + i, directions[:, i::groups]
        width = columns.shape[1]  # less than `size` in a model that is narrow
        values = mapping @ columns
        scale = (rows.tokens @ values).norm(dim=1).mean()
        at = slice(kv_head * size, kv_head * size + width)
        _weight(head, "v")[at, : shape.hidden] = values.T / scale
        for j in range(group):
            begin = (kv_head * group + j) * size
            outputs = columns * (scale * GAIN / raised / group)
            _weight(head, "o")[:, begin : begin + width] = outputs


def _output_size(head: Eagle3Head, examples: Sequence[Example]) -> Tensor:
    """The root mean square of an element of the head's outputs."""
    some = [example for example in examples if example.num_rows > 0][:8]
    outputs = torch.cat([*next(iter(unroll(head, some, 1)))])
    return outputs.pow(2).mean(1).sqrt().mean()


def _weight(head: Eagle3Head, part: str) -> Tensor:
    return head.get_parameter(f"midlayer.self_attn.{part}_proj.weight")


def _least_squares(inputs: Tensor, outputs: Tensor, damping: float) -> Tensor:
    """The matrix by which inputs come close to the outputs, [elements in, elements out]."""
    solved: Tensor = torch.linalg.solve(_damped(inputs.T @ inputs, damping), inputs.T @ outputs)
    return solved


def _damped(gram: Tensor, damping: float) -> Tensor:
    return gram + damping * gram.diagonal().mean() * torch.eye(len(gram))

"""Attention heads that copy before any training: what followed a token earlier follows it again."""

from __future__ import annotations

import torch

from forerun.training.copying import begin_copying
from forerun.training.eagle3 import COPYING_KV_HEADS, Eagle3Head
from forerun.training.shape import HeadShape
from forerun.training.unroll import Example, unroll
from forerun.training.vocabulary import DraftVocabulary

VOCAB, HIDDEN, HEAD_DIM, TAPS = 400, 96, 32, 3
SLOW, FAST = 1e-4, 1.0


def _head(inverse_frequencies: float = SLOW) -> Eagle3Head:
    """A head whose attention and MLP add nothing, so that what it copies stands out."""
    shape = HeadShape(
        hidden=HIDDEN,
        intermediate=48,
        heads=2 + 2 * COPYING_KV_HEADS,
        kv_heads=1 + COPYING_KV_HEADS,
        head_dim=HEAD_DIM,
        rms_norm_eps=1e-5,
        bias=False,
    )
    torch.manual_seed(3)
    frequencies = torch.full((HEAD_DIM // 2,), inverse_frequencies)
    head = Eagle3Head(shape, frequencies, DraftVocabulary.whole(VOCAB), TAPS)
    with torch.no_grad():
        head.fc.weight.zero_()
        head.fc.weight[:, -HIDDEN:] = torch.eye(HIDDEN)
        for name, weight in head.midlayer.named_parameters():
            if "norm" not in name:
                weight.zero_()
        head.lm_head.weight.copy_(0.05 * _embedding())
    return head


def _embedding() -> torch.Tensor:
    return torch.randn(VOCAB, HIDDEN, generator=torch.Generator().manual_seed(0))


def _example(seed: int) -> Example:
    """A text whose second half repeats the first. The first tap tells the token in directions of
    its own; the last one tells nothing of it."""
    random = torch.Generator().manual_seed(seed)
    half = torch.randperm(VOCAB, generator=random)[:40]
    ids = torch.cat([half, half])
    turn = torch.linalg.qr(torch.randn(HIDDEN, HIDDEN, generator=torch.Generator().manual_seed(1)))
    taps = torch.randn(len(ids), TAPS, HIDDEN, generator=random)
    taps[:, 0] = _embedding()[ids] @ turn[0] + 0.5 * taps[:, 0]
    return Example(
        embeddings=_embedding()[ids],
        taps=taps,
        first=len(half),
        token_ids=ids,
        labels=ids,
        final=torch.zeros(len(half), HIDDEN),
        teacher=torch.zeros(len(half), VOCAB),
    )


@torch.no_grad()
def _right(head: Eagle3Head, example: Example) -> float:
    """The share of the rows whose best token comes next."""
    [output] = next(iter(unroll(head, [example], 1)))
    best = head.scores(output).argmax(-1)
    return float((best == example.token_ids[example.first + 2 :]).float().mean())


def test_a_head_repeats_what_it_has_seen_once() -> None:
    head, example = _head(), _example(1000)
    assert _right(head, example) < 0.1
    begin_copying(head, COPYING_KV_HEADS, [_example(seed) for seed in range(60)])
    assert _right(head, example) > 0.8


def test_what_the_heads_before_them_computed_stays() -> None:
    head = _head()
    attention = head.midlayer.self_attn
    before = {name: attention[name].weight.detach().clone() for name in ("q_proj", "k_proj")}
    begin_copying(head, COPYING_KV_HEADS, [_example(seed) for seed in range(60)])
    for name, weight in before.items():
        rows = len(weight) // (1 + COPYING_KV_HEADS)
        assert torch.equal(attention[name].weight[:rows], weight[:rows])
        assert bool(attention[name].weight[rows:].any())


def test_without_slow_rotations_or_documents_nothing_begins() -> None:
    for frequencies, examples in ((FAST, [_example(0)]), (SLOW, [])):
        head = _head(frequencies)
        before = {name: weight.detach().clone() for name, weight in head.named_parameters()}
        begin_copying(head, COPYING_KV_HEADS, examples)
        for name, weight in head.named_parameters():
            assert torch.equal(weight, before[name]), name

"""Owns continuous batched decoding with temperature: many continuations advance by a step each.

The engine returns its argmax alone, so sampled tokens are drawn here, from the states after its
final norm and the rows of the head. Knows nothing of prompts and answers.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from forerun.engine import Rows, Sequence
from forerun.training.target import Target, from_bits


@dataclass(slots=True, eq=False)
class Continuation:
    """A text that grows token by token.

    token_ids: given and added ones. max_added: tokens to add at most. temperature: 0 takes the
    target's argmax; above 0, tokens are drawn with `random`, from the `top_k` likeliest. taps:
    whose hidden states are kept of the tokens that have been through the engine, in `states`, each
    bfloat16 [n, taps, hidden]; those after the final norm are the last of them.
    """

    sequence: Sequence
    token_ids: list[int]
    max_added: int
    temperature: float
    top_k: int
    random: np.random.Generator
    taps: tuple[int, ...] = ()
    states: list[Tensor] = field(default_factory=list)
    num_given: int = field(init=False)
    ended: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        self.num_given = len(self.token_ids)

    @property
    def added(self) -> list[int]:
        return self.token_ids[self.num_given :]

    @property
    def done(self) -> bool:
        """Whether it ended with an end-of-sequence id, or has all its tokens."""
        return self.ended or len(self.token_ids) - self.num_given >= self.max_added


def step(target: Target, active: SequenceOf[Continuation], eos_token_ids: Collection[int]) -> None:
    """Runs one step of the engine: each continuation gets a token, or a part of its prefill.

    Those that come first are served first where the engine's rows do not suffice. Raises ValueError
    when the KV pool cannot hold them.
    """
    engine = target.engine
    final = (target.config.num_layers,)
    room = engine.info.max_rows
    batch: list[tuple[Continuation, Rows, bool]] = []
    for continuation in active:
        if room == 0:
            break
        pending = continuation.token_ids[continuation.sequence.length :]
        chunk = pending[:room]
        complete = len(chunk) == len(pending)
        if not engine.reserve(continuation.sequence, continuation.sequence.length + len(chunk)):
            raise ValueError(
                f"the KV pool of {engine.info.pages_total} pages is too small for "
                f"{len(active)} texts at once; run fewer"
            )
        sampled = complete and continuation.temperature > 0
        rows = Rows(
            continuation.sequence,
            np.asarray(chunk, dtype=np.int32),
            None,
            "last" if complete and not sampled else "none",
            continuation.taps or (final if sampled else ()),
        )
        batch.append((continuation, rows, complete))
        room -= len(chunk)
    outs = engine.forward([rows for _, rows, _ in batch])
    engine.commit([(rows.sequence, len(rows.token_ids)) for _, rows, _ in batch])
    drawn: list[tuple[Continuation, Tensor]] = []
    for (continuation, _, complete), out in zip(batch, outs, strict=True):
        if continuation.taps and out.hidden is not None:
            continuation.states.append(from_bits(out.hidden))
        if complete and continuation.temperature > 0:
            assert out.hidden is not None
            drawn.append((continuation, from_bits(out.hidden[-1:, -1])))
        elif complete:
            continuation.token_ids.append(int(out.predictions[-1]))
    if drawn:
        # With the few columns on the right this takes two thirds of the time.
        scores = (target.head @ torch.cat([state for _, state in drawn]).float().T).T
        for (continuation, _), row in zip(drawn, scores, strict=True):
            continuation.token_ids.append(_draw(row, continuation))
    for continuation, _, complete in batch:
        continuation.ended = complete and continuation.token_ids[-1] in eos_token_ids


def run_last(target: Target, ended: Continuation) -> None:
    """Sends the last token of a text that is done through the engine as well, for its states."""
    engine, sequence = target.engine, ended.sequence
    rest = np.asarray(ended.token_ids[sequence.length :], dtype=np.int32)
    engine.reserve(sequence, len(ended.token_ids))
    (out,) = engine.forward([Rows(sequence, rest, None, "none", ended.taps)])
    engine.commit([(sequence, len(rest))])
    assert out.hidden is not None
    ended.states.append(from_bits(out.hidden))


def _draw(scores: Tensor, continuation: Continuation) -> int:
    """Draws from the top_k scores [vocabulary] at the continuation's temperature."""
    best = torch.topk(scores.contiguous(), min(continuation.top_k, len(scores)))
    cumulative = torch.softmax(best.values / continuation.temperature, 0).cumsum(0).numpy()
    point = continuation.random.random() * float(cumulative[-1])
    return int(best.indices[int(np.searchsorted(cumulative, point, side="right"))])

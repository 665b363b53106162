"""The EAGLE-3 head once more, one row and one position at a time, from the paper's description.

It shares with the trained module nothing but the tensors, by their published names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

HEADS, KV_HEADS, HEAD_DIM, EPS, THETA = 4, 1, 16, 1e-5, 10_000.0

Row = tuple[Tensor, Tensor]


def norm(x: Tensor, weight: Tensor) -> Tensor:
    return x / torch.sqrt((x * x).mean() + EPS) * weight


def rotate(x: Tensor, position: int) -> Tensor:
    """x: [head_dim]; pairs are i and i + head_dim / 2."""
    half = HEAD_DIM // 2
    turned = x.clone()
    for i in range(half):
        angle = torch.tensor(position * THETA ** (-2 * i / HEAD_DIM))
        turned[i] = x[i] * angle.cos() - x[i + half] * angle.sin()
        turned[i + half] = x[i + half] * angle.cos() + x[i] * angle.sin()
    return turned


@dataclass
class Chain:
    """A head that takes one row after another; `rows` are its keys and values so far."""

    weights: Mapping[str, Tensor]
    rows: list[Row] = field(default_factory=list)

    def fuse(self, taps: Tensor) -> Tensor:
        return self.weights["fc.weight"] @ taps.flatten()

    def push(self, embedding: Tensor, hidden: Tensor, position: int) -> Tensor:
        """Adds a row and returns its output."""
        w = {name.removeprefix("midlayer."): value for name, value in self.weights.items()}
        x = torch.cat(
            [
                norm(embedding, w["input_layernorm.weight"]),
                norm(hidden, w["hidden_norm.weight"]),
            ]
        )
        q = (w["self_attn.q_proj.weight"] @ x).view(HEADS, HEAD_DIM)
        k = (w["self_attn.k_proj.weight"] @ x).view(KV_HEADS, HEAD_DIM)
        v = (w["self_attn.v_proj.weight"] @ x).view(KV_HEADS, HEAD_DIM)
        self.rows.append((torch.stack([rotate(head, position) for head in k]), v))
        attended = []
        for index in range(HEADS):
            kv = index * KV_HEADS // HEADS
            query = rotate(q[index], position)
            scores = torch.stack([query @ key[kv] for key, _ in self.rows]) / HEAD_DIM**0.5
            shares = scores.softmax(0)
            pairs = zip(shares, self.rows, strict=True)
            attended.append(sum(share * value[kv] for share, (_, value) in pairs))
        middle = hidden + w["self_attn.o_proj.weight"] @ torch.cat(attended)
        y = norm(middle, w["post_attention_layernorm.weight"])
        gate = w["mlp.gate_proj.weight"] @ y
        inner = gate * gate.sigmoid() * (w["mlp.up_proj.weight"] @ y)
        return middle + w["mlp.down_proj.weight"] @ inner

    def log_probabilities(self, output: Tensor) -> Tensor:
        normed = norm(output, self.weights["norm.weight"])
        return (self.weights["lm_head.weight"] @ normed).log_softmax(0)

    def copy(self) -> Chain:
        return Chain(self.weights, list(self.rows))

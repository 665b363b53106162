"""Owns the EAGLE-3 head as a torch module (arXiv:2503.01840), with the published tensor names.

A row of the head stands at position p: it takes the target's hidden taps at p, or the head's own
output there, and the embedding of the token at p + 1, and scores the token at p + 2. Knows nothing
of losses or data.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from forerun.models import ModelConfig
from forerun.models.eagle3 import default_taps
from forerun.training.target import Target
from forerun.training.vocabulary import DraftVocabulary

KeysValues = tuple[Tensor, Tensor]

MIN_LAYERS = 7


def head_taps(num_layers: int) -> tuple[int, int, int]:
    """The layers whose inputs the head sees. Raises ValueError for a target with too few."""
    if num_layers < MIN_LAYERS:
        raise ValueError(
            f"the target has {num_layers} layers; eagle3 needs at least {MIN_LAYERS}, so that the "
            "three layers that it looks at differ"
        )
    return default_taps(num_layers)


@dataclass(frozen=True, slots=True)
class HeadShape:
    """Sizes of a head. hidden: that of the target as well."""

    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    num_taps: int
    draft_vocab: int
    rms_norm_eps: float

    @classmethod
    def of_target(cls, config: ModelConfig, num_taps: int, draft_vocab: int) -> HeadShape:
        """A head that is as wide as a layer of the target."""
        return cls(
            hidden=config.hidden_size,
            intermediate=config.intermediate_size,
            heads=config.num_heads,
            kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            num_taps=num_taps,
            draft_vocab=draft_vocab,
            rms_norm_eps=config.rms_norm_eps,
        )


class _Attention(nn.Module):
    def __init__(self, shape: HeadShape) -> None:
        super().__init__()
        wide, rows = 2 * shape.hidden, shape.head_dim
        self.q_proj = nn.Linear(wide, shape.heads * rows, bias=False)
        self.k_proj = nn.Linear(wide, shape.kv_heads * rows, bias=False)
        self.v_proj = nn.Linear(wide, shape.kv_heads * rows, bias=False)
        self.o_proj = nn.Linear(shape.heads * rows, shape.hidden, bias=False)


class _Mlp(nn.Module):
    def __init__(self, shape: HeadShape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden, shape.intermediate, bias=False)
        self.up_proj = nn.Linear(shape.hidden, shape.intermediate, bias=False)
        self.down_proj = nn.Linear(shape.intermediate, shape.hidden, bias=False)


class _MidLayer(nn.Module):
    def __init__(self, shape: HeadShape) -> None:
        super().__init__()
        self.hidden_norm = nn.RMSNorm(shape.hidden, eps=shape.rms_norm_eps)
        self.input_layernorm = nn.RMSNorm(shape.hidden, eps=shape.rms_norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(shape.hidden, eps=shape.rms_norm_eps)
        self.self_attn = _Attention(shape)
        self.mlp = _Mlp(shape)


class Eagle3Head(nn.Module):
    """The head. inverse_frequencies: float32 [head_dim / 2], of its rotation."""

    def __init__(self, shape: HeadShape, inverse_frequencies: Tensor) -> None:
        super().__init__()
        self.shape = shape
        self._inverse_frequencies = inverse_frequencies
        self.fc = nn.Linear(shape.num_taps * shape.hidden, shape.hidden, bias=False)
        self.midlayer = _MidLayer(shape)
        self.norm = nn.RMSNorm(shape.hidden, eps=shape.rms_norm_eps)
        self.lm_head = nn.Linear(shape.hidden, shape.draft_vocab, bias=False)

    def fuse(self, taps: Tensor) -> Tensor:
        """[n, taps, hidden] → [n, hidden]."""
        fused: Tensor = self.fc(taps.flatten(1))
        return fused

    def mix(self, embeddings: Tensor, hidden: Tensor) -> Tensor:
        """The input of attention, [..., 2 hidden], of [..., hidden] each."""
        layer = self.midlayer
        return torch.cat([layer.input_layernorm(embeddings), layer.hidden_norm(hidden)], -1)

    def queries(self, mixed: Tensor, positions: Tensor) -> Tensor:
        """[..., heads, head_dim], rotated; positions: int64 [...]."""
        rows = self.midlayer.self_attn.q_proj(mixed).unflatten(-1, (-1, self.shape.head_dim))
        return self._rotate(rows, positions)

    def keys_values(self, mixed: Tensor, positions: Tensor) -> KeysValues:
        """Each [..., kv_heads, head_dim], the keys rotated."""
        attention = self.midlayer.self_attn
        by_head = (-1, self.shape.head_dim)
        keys = attention.k_proj(mixed).unflatten(-1, by_head)
        values = attention.v_proj(mixed).unflatten(-1, by_head)
        return self._rotate(keys, positions), values

    def finish(self, hidden: Tensor, attended: Tensor) -> Tensor:
        """The output, [..., hidden], which is also the next row's input in the place of the fused
        taps. attended: [..., heads * head_dim]."""
        layer = self.midlayer
        middle = hidden + layer.self_attn.o_proj(attended)
        rows = layer.post_attention_layernorm(middle)
        inner = functional.silu(layer.mlp.gate_proj(rows)) * layer.mlp.up_proj(rows)
        output: Tensor = middle + layer.mlp.down_proj(inner)
        return output

    def scores(self, output: Tensor) -> Tensor:
        """[..., draft_vocab]."""
        scores: Tensor = self.lm_head(self.norm(output))
        return scores

    def _rotate(self, rows: Tensor, positions: Tensor) -> Tensor:
        angles = positions.float()[..., None, None] * self._inverse_frequencies
        cos, sin = angles.cos(), angles.sin()
        first, second = rows.chunk(2, -1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


def new_head(target: Target, vocabulary: DraftVocabulary, num_taps: int) -> Eagle3Head:
    """A head that begins as what the target's last layer and head would say of its last tap.

    The half of the projections that sees the token's embedding begins at 0.
    """
    config, layer = target.config, target.last_layer
    shape = HeadShape.of_target(config, num_taps, len(vocabulary))
    frequencies = torch.from_numpy(config.rope.inverse_frequencies(config.head_dim).copy())
    head = Eagle3Head(shape, frequencies)
    attention, mlp, hidden = head.midlayer.self_attn, head.midlayer.mlp, shape.hidden
    with torch.no_grad():
        head.fc.weight.zero_()
        head.fc.weight[:, -hidden:] = torch.eye(hidden)
        for name in ("q_proj", "k_proj", "v_proj"):
            weight = getattr(attention, name).weight
            weight.zero_()
            weight[:, hidden:] = layer[f"self_attn.{name}.weight"]
        attention.o_proj.weight.copy_(layer["self_attn.o_proj.weight"])
        for name in ("gate_proj", "up_proj", "down_proj"):
            getattr(mlp, name).weight.copy_(layer[f"mlp.{name}.weight"])
        head.midlayer.hidden_norm.weight.copy_(layer["input_layernorm.weight"])
        head.midlayer.post_attention_layernorm.weight.copy_(
            layer["post_attention_layernorm.weight"]
        )
        # Scales embeddings to the size that the first layer's attention is used to.
        head.midlayer.input_layernorm.weight.copy_(target.first_norm)
        head.norm.weight.copy_(target.final_norm)
        head.lm_head.weight.copy_(target.head[vocabulary.target_ids])
    return head

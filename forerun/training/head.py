"""Owns what every head that can be trained is: a torch module around one decoder layer, and what
training, measuring and publishing ask of it.

A row of a head stands at position p: it takes the target's hidden taps at p, or the head's own
output there, and the embedding of the token at p + 1, and scores the token at p + 2. Knows nothing
of data.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import Self

from forerun.models import ModelConfig
from forerun.training.export import Published
from forerun.training.shape import HeadShape
from forerun.training.target import Target
from forerun.training.vocabulary import DraftVocabulary

if TYPE_CHECKING:
    from forerun.training.origin import Origin
    from forerun.training.unroll import Example

KeysValues = tuple[Tensor, Tensor]


class DecoderLayer(nn.Module):
    """The weights that the layer of every head has. width: of what attention takes."""

    def __init__(self, shape: HeadShape, width: int) -> None:
        super().__init__()
        queries, rows = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        self.self_attn = nn.ModuleDict(
            {
                "q_proj": nn.Linear(width, queries, bias=shape.bias),
                "k_proj": nn.Linear(width, rows, bias=shape.bias),
                "v_proj": nn.Linear(width, rows, bias=shape.bias),
                "o_proj": nn.Linear(queries, shape.hidden, bias=False),
            }
        )
        self.mlp = nn.ModuleDict(
            {
                "gate_proj": nn.Linear(shape.hidden, shape.intermediate, bias=False),
                "up_proj": nn.Linear(shape.hidden, shape.intermediate, bias=False),
                "down_proj": nn.Linear(shape.intermediate, shape.hidden, bias=False),
            }
        )
        self.post_attention_layernorm = rms_norm(shape)

    @torch.no_grad()
    def begin_as(self, layer: Mapping[str, Tensor]) -> None:
        """Takes over what it has in common with a layer of the target, by name. Attention heads
        beyond that layer's begin at 0. Of a wider input the last columns are that layer's, and
        those before them begin at 0."""
        for name, weight in self.named_parameters():
            if name not in layer:
                continue
            weight.zero_()
            given = layer[name]
            if name == "self_attn.o_proj.weight":
                weight[:, : given.shape[1]] = given
            elif given.ndim == 2:
                weight[: len(given), -given.shape[1] :] = given
            else:
                weight[: len(given)] = given

    @torch.no_grad()
    def silence(self) -> None:
        """Lets attention and MLP add nothing to the residual stream before they are trained."""
        for name in ("self_attn.o_proj.weight", "mlp.down_proj.weight"):
            self.get_parameter(name).zero_()


class Head(nn.Module, ABC):
    """A head. inverse_frequencies: float32 [head_dim / 2], of its rotation. vocabulary: what it can
    propose.

    name: what --method and --draft call it. title: what people call it. token_weight: of the
    cross-entropy in the loss; feature_weight: of the distance of its outputs from the target's
    states after the final norm. muon_rate: the peak that suits it.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    token_weight: ClassVar[float] = 1.0
    feature_weight: ClassVar[float] = 0.0
    muon_rate: ClassVar[float] = 0.05

    def __init__(
        self, shape: HeadShape, inverse_frequencies: Tensor, vocabulary: DraftVocabulary
    ) -> None:
        super().__init__()
        self.shape = shape
        self.vocabulary = vocabulary
        self.inverse_frequencies = inverse_frequencies

    @classmethod
    @abstractmethod
    def taps(cls, target: ModelConfig) -> tuple[int, ...]:
        """The hidden states that it reads, as for `forerun.engine.Rows`. Raises ValueError for a
        target that no such head can be trained for."""

    @classmethod
    @abstractmethod
    def begin(cls, target: Target, taught: DraftVocabulary) -> Self:
        """A head that was not trained yet, made of the target's weights. taught: the tokens that
        its loss will look at."""

    def prepare(self, examples: Sequence[Example], origin: Origin | None) -> None:
        """What is done once before the first step of training: nothing, for most heads. examples:
        of what it will be trained on. origin: what to go on from; ValueError where it cannot."""
        if origin is not None:
            raise ValueError(
                f"a head for {self.name} cannot go on from a published one; eagle3's can"
            )

    def keep(self, vocabulary: DraftVocabulary) -> None:
        """Forgets the tokens that are not in `vocabulary`, some of its own, where a row for each is
        a part of the head; those that the target scores cost nothing."""

    @property
    @abstractmethod
    def layer(self) -> DecoderLayer:
        """Its decoder layer."""

    @abstractmethod
    def fuse(self, taps: Tensor) -> Tensor:
        """[n, taps, hidden] → [n, hidden], what a row takes of the target."""

    @abstractmethod
    def enter(self, embeddings: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """The residual stream [..., hidden] and what attention takes [..., width], of [..., hidden]
        each. hidden: of `fuse`, or of `finish` one row earlier."""

    @abstractmethod
    def scores(self, output: Tensor) -> Tensor:
        """[..., size of its vocabulary], of what `finish` gave."""

    @abstractmethod
    def taught_scores(self, output: Tensor) -> Tensor:
        """[..., taught], those that the loss looks at."""

    @abstractmethod
    def published(self, target: ModelConfig) -> Published:
        """The published form, as other engines read it. Raises ValueError for a target that it has
        no words for."""

    def queries(self, rows: Tensor, positions: Tensor) -> Tensor:
        """[..., heads, head_dim], rotated; rows: what attention takes; positions: int64 [...]."""
        return self._rotate(self._project("q_proj", rows), positions)

    def keys_values(self, rows: Tensor, positions: Tensor) -> KeysValues:
        """Each [..., kv_heads, head_dim], the keys rotated."""
        keys, values = self._project("k_proj", rows), self._project("v_proj", rows)
        return self._rotate(keys, positions), values

    def finish(self, residual: Tensor, attended: Tensor) -> Tensor:
        """The output, [..., hidden], which is also the next row's input in the place of what it
        takes of the target. attended: [..., heads * head_dim]."""
        layer = self.layer
        middle = residual + layer.self_attn["o_proj"](attended)
        rows = layer.post_attention_layernorm(middle)
        inner = functional.silu(layer.mlp["gate_proj"](rows)) * layer.mlp["up_proj"](rows)
        output: Tensor = middle + layer.mlp["down_proj"](inner)
        return output

    def _project(self, name: str, rows: Tensor) -> Tensor:
        projected: Tensor = self.layer.self_attn[name](rows)
        return projected.view(*projected.shape[:-1], -1, self.shape.head_dim)

    def _rotate(self, rows: Tensor, positions: Tensor) -> Tensor:
        angles = positions.float()[..., None, None] * self.inverse_frequencies
        cos, sin = angles.cos(), angles.sin()
        first, second = rows.chunk(2, -1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


class TargetScoredHead(Head):
    """A head whose output is like what leaves the target's final norm, so that the target's own
    head scores it. target_head: float32 [vocab_size, hidden], not trained. taught: the tokens that
    the loss looks at."""

    def __init__(
        self,
        shape: HeadShape,
        inverse_frequencies: Tensor,
        target_head: Tensor,
        taught: DraftVocabulary,
    ) -> None:
        super().__init__(shape, inverse_frequencies, DraftVocabulary.whole(len(target_head)))
        self._target_head = target_head
        self._taught = target_head[taught.target_ids]

    @classmethod
    def begin(cls, target: Target, taught: DraftVocabulary) -> Self:
        """As a target whose state stays as it is. The layer is the target's last, but silent: it
        was made for the residual stream, which has another scale than what left the final norm."""
        config = target.config
        shape = HeadShape.of_target(config, bias=config.attention_bias)
        head = cls(shape, rotation_of(config), target.head, taught)
        head.layer.begin_as(target.last_layer)
        head.layer.silence()
        head.pass_on(target)
        return head

    @abstractmethod
    def pass_on(self, target: Target) -> None:
        """Sets what joins an embedding and the target's state to the state alone, and the norms
        around it to the target's."""

    def fuse(self, taps: Tensor) -> Tensor:
        return taps[:, 0]

    def scores(self, output: Tensor) -> Tensor:
        return output @ self._target_head.T

    def taught_scores(self, output: Tensor) -> Tensor:
        return output @ self._taught.T


def rms_norm(shape: HeadShape) -> nn.RMSNorm:
    """A norm of `hidden` elements."""
    return nn.RMSNorm(shape.hidden, eps=shape.rms_norm_eps)


def rotation_of(config: ModelConfig) -> Tensor:
    """The inverse frequencies of the target's own rotation."""
    return torch.from_numpy(config.rope.inverse_frequencies(config.head_dim).copy())

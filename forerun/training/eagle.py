"""Owns the head of EAGLE-1 and -2 (arXiv:2401.15077), with the published tensor names: embedding
and hidden state are joined and go through one layer, whose output imitates the target's next state
after the final norm, so that the target's own head scores it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from forerun.models import ModelConfig
from forerun.training.export import Published, layer_config, rope_config
from forerun.training.head import DecoderLayer, TargetScoredHead
from forerun.training.shape import HeadShape
from forerun.training.target import Target
from forerun.training.vocabulary import DraftVocabulary


class EagleHead(TargetScoredHead):
    """The head."""

    name = "eagle"
    title = "EAGLE-1"
    # The paper's: its regression counts 1, its classification 0.1.
    token_weight = 0.1
    feature_weight = 1.0
    # No norm bounds what it hands to itself: at 0.05 the loss of SmolLM2-135M's head first trebled.
    muon_rate = 0.01

    def __init__(
        self,
        shape: HeadShape,
        inverse_frequencies: Tensor,
        target_head: Tensor,
        taught: DraftVocabulary,
    ) -> None:
        super().__init__(shape, inverse_frequencies, target_head, taught)
        self.fc = nn.Linear(2 * shape.hidden, shape.hidden, bias=False)
        self.layers = nn.ModuleList([DecoderLayer(shape, shape.hidden)])

    @classmethod
    def taps(cls, target: ModelConfig) -> tuple[int, ...]:
        rope_config(target)
        return (target.num_layers,)

    @torch.no_grad()
    def pass_on(self, target: Target) -> None:
        self.fc.weight.zero_()
        self.fc.weight[:, self.shape.hidden :] = torch.eye(self.shape.hidden)

    @property
    def layer(self) -> DecoderLayer:
        layer = self.layers[0]
        assert isinstance(layer, DecoderLayer)
        return layer

    def enter(self, embeddings: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        rows: Tensor = self.fc(torch.cat([embeddings, hidden], -1))
        return rows, rows

    def published(self, target: ModelConfig) -> Published:
        config = {
            "architectures": ["LlamaForCausalLM"],
            **layer_config(self.shape, target),
            "bias": False,  # of fc, which readers take to have one
            "qkv_bias": self.shape.bias,
        }
        return Published(dict(self.named_parameters()), config)

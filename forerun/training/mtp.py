"""Owns the layer for multi-token prediction (arXiv:2412.19437), with MiMo's tensor names: embedding
and hidden state are normed, joined, and go through a layer like the target's own, whose normed
output the target's own head scores."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from forerun.models import ModelConfig
from forerun.models.mtp import layer_of
from forerun.training.export import Published
from forerun.training.head import DecoderLayer, TargetScoredHead, rms_norm
from forerun.training.shape import HeadShape
from forerun.training.target import Target
from forerun.training.vocabulary import DraftVocabulary


class _MtpLayer(DecoderLayer):
    def __init__(self, shape: HeadShape) -> None:
        super().__init__(shape, shape.hidden)
        self.token_layernorm = rms_norm(shape)
        self.hidden_layernorm = rms_norm(shape)
        self.input_proj = nn.Linear(2 * shape.hidden, shape.hidden, bias=False)
        self.input_layernorm = rms_norm(shape)
        self.final_layernorm = rms_norm(shape)


class MtpHead(TargetScoredHead):
    """The layer."""

    name = "mtp"
    title = "Multi-token prediction"

    def __init__(
        self,
        shape: HeadShape,
        inverse_frequencies: Tensor,
        target_head: Tensor,
        taught: DraftVocabulary,
    ) -> None:
        super().__init__(shape, inverse_frequencies, target_head, taught)
        self.mtp_layers = nn.ModuleList([_MtpLayer(shape)])

    @classmethod
    def taps(cls, target: ModelConfig) -> tuple[int, ...]:
        return layer_of(target).taps

    @torch.no_grad()
    def pass_on(self, target: Target) -> None:
        layer, hidden = self.layer, self.shape.hidden
        layer.input_proj.weight.zero_()
        layer.input_proj.weight[:, :hidden] = torch.eye(hidden)
        # Scales embeddings to the size that the first layer's attention is used to.
        layer.token_layernorm.weight.copy_(target.first_norm)
        layer.final_layernorm.weight.copy_(target.final_norm)

    @property
    def layer(self) -> _MtpLayer:
        layer = self.mtp_layers[0]
        assert isinstance(layer, _MtpLayer)
        return layer

    def enter(self, embeddings: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        layer = self.layer
        joined = torch.cat([layer.hidden_layernorm(hidden), layer.token_layernorm(embeddings)], -1)
        rows: Tensor = layer.input_proj(joined)
        return rows, layer.input_layernorm(rows)

    def finish(self, residual: Tensor, attended: Tensor) -> Tensor:
        output: Tensor = self.layer.final_layernorm(super().finish(residual, attended))
        return output

    def published(self, target: ModelConfig) -> Published:
        """config.json describes the model that the layer belongs to."""
        tensors = {f"model.{name}": weight for name, weight in self.named_parameters()}
        config = {
            "model_type": target.architecture,
            "hidden_size": target.hidden_size,
            "intermediate_size": target.intermediate_size,
            "num_attention_heads": target.num_heads,
            "num_key_value_heads": target.num_kv_heads,
            "head_dim": target.head_dim,
            "num_hidden_layers": target.num_layers,
            "num_nextn_predict_layers": 1,
            "vocab_size": target.vocab_size,
            "rms_norm_eps": target.rms_norm_eps,
            "attention_bias": target.attention_bias,
            "dtype": "bfloat16",
        }
        return Published(tensors, config)

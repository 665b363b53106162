"""Owns the EAGLE-3 head (arXiv:2503.01840), with the published tensor names: it sees three layers
of the target, keeps embedding and hidden states apart, and scores a vocabulary of its own."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from typing_extensions import Self

from forerun.models import ModelConfig
from forerun.models.eagle3 import default_taps
from forerun.training.copying import begin_copying
from forerun.training.export import Published, layer_config, rope_config
from forerun.training.head import DecoderLayer, Head, rms_norm, rotation_of
from forerun.training.origin import Origin
from forerun.training.shape import HeadShape
from forerun.training.target import Target
from forerun.training.unroll import Example
from forerun.training.vocabulary import DraftVocabulary

MIN_LAYERS = 7
# Key-value heads beyond the target's, each with as many query heads: these begin able to copy.
COPYING_KV_HEADS = 2


class _MidLayer(DecoderLayer):
    def __init__(self, shape: HeadShape) -> None:
        super().__init__(shape, 2 * shape.hidden)
        self.hidden_norm = rms_norm(shape)
        self.input_layernorm = rms_norm(shape)


class Eagle3Head(Head):
    """The head. num_taps: hidden states of the target that a row sees."""

    name = "eagle3"
    title = "EAGLE-3"

    def __init__(
        self,
        shape: HeadShape,
        inverse_frequencies: Tensor,
        vocabulary: DraftVocabulary,
        num_taps: int,
    ) -> None:
        super().__init__(shape, inverse_frequencies, vocabulary)
        self.fc = nn.Linear(num_taps * shape.hidden, shape.hidden, bias=False)
        self.midlayer = _MidLayer(shape)
        self.norm = rms_norm(shape)
        self.lm_head = nn.Linear(shape.hidden, len(vocabulary), bias=False)

    @classmethod
    def taps(cls, target: ModelConfig) -> tuple[int, ...]:
        if target.num_layers < MIN_LAYERS:
            raise ValueError(
                f"the target has {target.num_layers} layers; eagle3 needs at least {MIN_LAYERS}, "
                "so that the three layers that it looks at differ"
            )
        rope_config(target)
        return default_taps(target.num_layers)

    @classmethod
    def begin(cls, target: Target, taught: DraftVocabulary) -> Self:
        """As what the target's last layer and head would say of its last tap. The half of the
        projections that sees the token's embedding begins at 0, and so do the heads that `prepare`
        teaches to copy."""
        shape = HeadShape.of_target(target.config, more_kv_heads=COPYING_KV_HEADS)
        head = cls(shape, rotation_of(target.config), taught, len(cls.taps(target.config)))
        layer = head.midlayer
        layer.begin_as(target.last_layer)
        with torch.no_grad():
            head.fc.weight.zero_()
            head.fc.weight[:, -shape.hidden :] = torch.eye(shape.hidden)
            layer.hidden_norm.weight.copy_(target.last_layer["input_layernorm.weight"])
            # Scales embeddings to the size that the first layer's attention is used to.
            layer.input_layernorm.weight.copy_(target.first_norm)
            head.norm.weight.copy_(target.final_norm)
            head.lm_head.weight.copy_(target.head[taught.target_ids])
        return head

    def prepare(self, examples: Sequence[Example], origin: Origin | None) -> None:
        """Lets it begin as `origin`, if any, and able to copy, if that could not."""
        queries = "midlayer.self_attn.q_proj.weight"
        can_copy = False
        if origin is not None:
            draft_ids = self.vocabulary.draft_ids(origin.target_ids)
            for name, weight in self.named_parameters():
                origin.begin(name, weight, draft_ids)
            can_copy = origin.tensors[queries].shape == self.get_parameter(queries).shape
        if not can_copy:
            begin_copying(self, COPYING_KV_HEADS, examples)

    @torch.no_grad()
    def keep(self, vocabulary: DraftVocabulary) -> None:
        rows = self.lm_head.weight[self.vocabulary.draft_ids(vocabulary.target_ids)]
        self.lm_head = nn.Linear(self.shape.hidden, len(vocabulary), bias=False)
        self.lm_head.weight.copy_(rows)
        self.vocabulary = vocabulary

    @property
    def layer(self) -> DecoderLayer:
        return self.midlayer

    def fuse(self, taps: Tensor) -> Tensor:
        fused: Tensor = self.fc(taps.flatten(1))
        return fused

    def enter(self, embeddings: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        layer = self.midlayer
        rows = torch.cat([layer.input_layernorm(embeddings), layer.hidden_norm(hidden)], -1)
        return hidden, rows

    def scores(self, output: Tensor) -> Tensor:
        scores: Tensor = self.lm_head(self.norm(output))
        return scores

    def taught_scores(self, output: Tensor) -> Tensor:
        return self.scores(output)

    def published(self, target: ModelConfig) -> Published:
        """The ids of the taps are the layers whose inputs they are."""
        tensors: dict[str, Tensor] = dict(self.named_parameters())
        tensors["d2t"] = self.vocabulary.d2t
        tensors["t2d"] = self.vocabulary.t2d(target.vocab_size)
        config = {
            "architectures": ["LlamaForCausalLMEagle3"],
            **layer_config(self.shape, target),
            "draft_vocab_size": len(self.vocabulary),
            "attention_bias": False,
            "mlp_bias": False,
            "eagle_aux_hidden_state_layer_ids": list(self.taps(target)),
        }
        return Published(tensors, config)

"""Owns the sizes of a head that is trained."""

from __future__ import annotations

from dataclasses import dataclass

from forerun.models import ModelConfig


@dataclass(frozen=True, slots=True)
class HeadShape:
    """Sizes of a head. hidden: that of the target as well. bias: whether queries, keys and values
    have biases."""

    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    rms_norm_eps: float
    bias: bool

    @classmethod
    def of_target(
        cls, config: ModelConfig, *, bias: bool = False, more_kv_heads: int = 0
    ) -> HeadShape:
        """A head that is as wide as a layer of the target. more_kv_heads: beyond those of the
        target, each with as many query heads."""
        kv_heads = config.num_kv_heads + more_kv_heads
        return cls(
            hidden=config.hidden_size,
            intermediate=config.intermediate_size,
            heads=kv_heads * (config.num_heads // config.num_kv_heads),
            kv_heads=kv_heads,
            head_dim=config.head_dim,
            rms_norm_eps=config.rms_norm_eps,
            bias=bias,
        )

"""Owns what a user may choose about training; knows nothing of how it is done."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from forerun.training.optimisation import OptimiserSettings

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class TrainingSettings:
    """How a head is trained.

    method: whose head it is, see methods.py. draft_vocab: tokens that the loss looks at;
    eagle3 can propose no others. unroll: steps on its own outputs; decay: weight of a
    step relative to the one before; alone: share of the budget, at its begin, in which step 0 is
    the only one, so that three times as many tokens are seen. batch_rows: answer tokens in an
    optimiser step. minutes, tokens: the budget, in time spent computing and in answer tokens
    trained on, repeats counted; the one that is reached first ends it, 0 is no limit.
    checkpoint_minutes: between checkpoints; measure_minutes: between measurements, on `held_out`
    documents. states_mib: room on disk for hidden states of documents.

    Raises ValueError for a value out of range.
    """

    method: str = "eagle3"
    draft_vocab: int = 8192
    unroll: int = 3
    decay: float = 0.85
    alone: float = 0.6
    batch_rows: int = 1024
    minutes: float = 0.0
    tokens: int = 0
    seed: int = 0
    checkpoint_minutes: float = 5.0
    measure_minutes: float = 15.0
    held_out: int = 12
    states_mib: int = 16384
    optimiser: OptimiserSettings = field(default_factory=OptimiserSettings)

    def __post_init__(self) -> None:
        for name in ("draft_vocab", "unroll", "batch_rows"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
        for name in ("minutes", "tokens", "held_out", "states_mib"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 0")
        if not 0 <= self.alone <= 1:
            raise ValueError(f"alone is {self.alone}; it must be 0 to 1")
        if not self.minutes and not self.tokens:
            raise ValueError("training has no end; limit its minutes or its tokens")

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

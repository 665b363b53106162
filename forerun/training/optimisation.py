"""Owns how gradients change weights: Muon for matrices, AdamW for the rest, one schedule for both.

Muon (Jordan et al., 2024, kellerjordan.github.io/posts/muon) replaces a matrix's momentum by the
nearest orthogonal matrix, found by five Newton-Schulz steps. torch.optim.Muon takes these steps in
bfloat16, which processors without instructions for it multiply six times slower than float32; here
they are in float32.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

_QUINTIC = (3.4445, -4.7750, 2.0315)
_NEWTON_SCHULZ_STEPS = 5


@dataclass(frozen=True, slots=True)
class OptimiserSettings:
    """muon_rate, adamw_rate: learning rates at their peak. warm_up: share of the budget in which
    they rise; then they fall linearly, to 0 at its end."""

    muon_rate: float = 0.05
    adamw_rate: float = 1.5e-3
    momentum: float = 0.95
    betas: tuple[float, float] = (0.9, 0.95)
    warm_up: float = 0.02

    def scaled(self, factor: float) -> OptimiserSettings:
        """With other rates, all in the same proportion."""
        return replace(self, muon_rate=factor * self.muon_rate, adamw_rate=factor * self.adamw_rate)

    def factor(self, progress: float) -> float:
        """What the rates are multiplied by once `progress` of the budget, 0 to 1, is spent."""
        if progress < self.warm_up:
            return max(progress / self.warm_up, 0.05)
        return max((1 - progress) / (1 - self.warm_up), 0.0)


def orthogonalised(matrix: Tensor) -> Tensor:
    """Roughly U V^T of the matrix's singular value decomposition U S V^T: the quintic leaves
    singular values between about 0.7 and 1.2."""
    a, b, c = _QUINTIC
    tall = matrix.shape[0] > matrix.shape[1]
    x: Tensor = matrix.T if tall else matrix
    x = x / (x.norm() + 1e-7)
    for _ in range(_NEWTON_SCHULZ_STEPS):
        gram = x @ x.T
        x = a * x + torch.addmm(gram, gram, gram, beta=b, alpha=c) @ x
    return x.T if tall else x


class Muon(torch.optim.Optimizer):
    """Momentum with Nesterov's correction, orthogonalised; for matrices alone."""

    def __init__(self, matrices: Iterable[Tensor], rate: float, momentum: float) -> None:
        super().__init__(matrices, {"lr": rate, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                state = self.state[weight]
                average = state.setdefault("momentum", torch.zeros_like(weight))
                average.lerp_(weight.grad, 1 - group["momentum"])
                update = orthogonalised(weight.grad.lerp(average, group["momentum"]))
                scale = max(1.0, weight.shape[0] / weight.shape[1]) ** 0.5
                weight.add_(update, alpha=-group["lr"] * scale)


class Optimiser:
    """Both optimisers of a head. The last matrix, whose rows are tokens, belongs to AdamW."""

    def __init__(self, head: nn.Module, settings: OptimiserSettings) -> None:
        self._settings = settings
        self._names: dict[Tensor, str] = {w: name for name, w in head.named_parameters()}
        self._matrices = {
            weight: name
            for weight, name in self._names.items()
            if weight.ndim == 2 and not name.startswith("lm_head")
        }
        rest = [weight for weight in self._names if weight not in self._matrices]
        self._muon = Muon(self._matrices, settings.muon_rate, settings.momentum)
        self._adamw = torch.optim.AdamW(
            rest, lr=settings.adamw_rate, betas=settings.betas, weight_decay=0.0
        )

    def step(self, progress: float) -> None:
        """Changes the weights by their gradients, which are then forgotten."""
        factor = self._settings.factor(progress)
        for optimiser, rate in (
            (self._muon, self._settings.muon_rate),
            (self._adamw, self._settings.adamw_rate),
        ):
            for group in optimiser.param_groups:
                group["lr"] = rate * factor
            optimiser.step()
            optimiser.zero_grad()

    def forget_gradients(self) -> None:
        self._muon.zero_grad()
        self._adamw.zero_grad()

    def state(self) -> dict[str, Tensor]:
        """All that `restore` needs, by the weight's name and the quantity."""
        return {
            f"{self._names[weight]}/{quantity}": value
            for optimiser in (self._muon, self._adamw)
            for weight, quantities in optimiser.state.items()
            for quantity, value in quantities.items()
        }

    def restore(self, state: Mapping[str, Tensor]) -> None:
        weights = {name: weight for weight, name in self._names.items()}
        for key, value in state.items():
            name, quantity = key.split("/")
            weight = weights[name]
            optimiser = self._muon if weight in self._matrices else self._adamw
            optimiser.state[weight][quantity] = value.clone()

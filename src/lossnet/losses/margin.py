"""Margin losses: the truth must have a lower energy than what the network predicts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Self

from torch import Tensor

from lossnet.losses.base import EnergyFunction, ScoredLoss, with_truth
from lossnet.scores import Manhattan, Score
from lossnet.spaces import Prediction

if TYPE_CHECKING:
    from lossnet.settings import Settings


@dataclass(frozen=True)
class Margin(ScoredLoss):
    """``[cost(ŷ, y) − E(x, ŷ) + E(x, y)]₊``, the structured hinge loss (SEAL Eq. 6; InfNet+ Eq. 5, left).

    Several candidates' losses are averaged.

    >>> import torch
    >>> from lossnet.spaces import MultiLabel
    >>> truth, energy = torch.tensor([[1.0, 0.0]]), lambda y: -y[..., 0]
    >>> prediction = Prediction(MultiLabel(2), torch.tensor([[-9.0, 9.0]]))
    >>> loss = Margin()
    >>> loss(energy, truth, loss.propose(prediction), prediction)  # cost 1, energies 0 and -1
    tensor([0.])
    """

    name: ClassVar[str] = "margin"

    @classmethod
    def from_settings(cls, settings: Settings, score: Score) -> Self:
        return cls(Manhattan() if settings.margin_cost == "manhattan" else score)

    def __call__(
        self, energy: EnergyFunction, truth: Tensor, candidates: Tensor, prediction: Prediction
    ) -> Tensor:
        return self.violation(energy, truth, candidates).clamp(min=0).mean(1)

    def violation(self, energy: EnergyFunction, truth: Tensor, candidates: Tensor) -> Tensor:
        """Return ``cost(ŷ, y) − E(x, ŷ) + E(x, y)`` of each candidate, ``(batch, K)``, not truncated."""
        energies = energy(with_truth(truth, candidates))
        return self.cost(candidates, truth) - energies[:, 1:] + energies[:, :1]

    def adversary(self, energy: EnergyFunction, truth: Tensor) -> EnergyFunction:
        """Return ``y ↦ E(x, y) − cost(y, truth)``, which is lowest where the margin is violated most."""
        return lambda y: energy(y) - self.cost(y, truth)

    def cost(self, candidates: Tensor, truth: Tensor) -> Tensor | float:
        """Return the margin asked for, ``(batch, K)``."""
        return self.score.cost(candidates, truth)


@dataclass(frozen=True)
class Perceptron(Margin):
    """``[−E(x, ŷ) + E(x, y)]₊``, a `Margin` of zero (InfNet+ Eq. 5, right).

    >>> import torch
    >>> from lossnet.spaces import MultiLabel
    >>> prediction = Prediction(MultiLabel(1), torch.tensor([[0.0]]))
    >>> Perceptron()(lambda y: y.sum(-1), torch.ones(1, 1), prediction.relaxed.unsqueeze(1), prediction)
    tensor([0.5000])
    """

    name: ClassVar[str] = "perceptron"

    def cost(self, candidates: Tensor, truth: Tensor) -> float:
        return 0.0

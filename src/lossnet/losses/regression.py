"""Regression losses: the energy learns the score itself, as deep value networks do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Self

import torch
from torch import Tensor
from torch.nn import functional as F

from lossnet.losses.base import EnergyFunction, ScoredLoss
from lossnet.scores import Score
from lossnet.spaces import Prediction

if TYPE_CHECKING:
    from lossnet.settings import Settings


@dataclass(frozen=True)
class Regression(ScoredLoss):
    """``BCE(σ(−E(x, ŷ)), s(ŷ, y))`` (SEAL Eq. 7, with ``log(1 − σ)`` where it prints ``1 + σ``).

    Several candidates' losses are averaged.  The score must be in [0, 1].

    >>> from lossnet.spaces import MultiLabel
    >>> prediction = Prediction(MultiLabel(1), torch.tensor([[99.0]]))
    >>> loss = Regression()
    >>> loss(lambda y: 0 * y.sum(-1), torch.ones(1, 1), loss.propose(prediction), prediction)
    tensor([0.6931])
    """

    name: ClassVar[str] = "regression"
    bounded: ClassVar[bool] = True

    def __call__(
        self, energy: EnergyFunction, truth: Tensor, candidates: Tensor, prediction: Prediction
    ) -> Tensor:
        return self.of_candidates(energy, truth, candidates).mean(1)

    def of_candidates(self, energy: EnergyFunction, truth: Tensor, candidates: Tensor) -> Tensor:
        """Return the loss of each candidate, ``(batch, K)``."""
        target = self.score(candidates, truth)
        return F.binary_cross_entropy_with_logits(-energy(candidates), target, reduction="none")


@dataclass(frozen=True)
class RegressionS(Regression):
    """The mean of `Regression` over ``ŷ`` and ``samples`` Gaussian perturbations of its logits (SEAL §2.3).

    >>> from lossnet.spaces import MultiLabel
    >>> RegressionS(samples=4).propose(Prediction(MultiLabel(3), torch.zeros(2, 3))).shape
    torch.Size([2, 5, 3])
    """

    name: ClassVar[str] = "regression-s"
    search: ClassVar[tuple[str, ...]] = ("samples", "perturb_std")
    samples: int = 10
    std: float = 1.0

    @classmethod
    def from_settings(cls, settings: Settings, score: Score) -> Self:
        return cls(score, settings.samples, settings.perturb_std)

    def propose(self, prediction: Prediction) -> Tensor:
        around = prediction.perturb(self.samples, self.std)
        return torch.cat([super().propose(prediction), around], 1)

"""Regression losses: the energy learns the score itself, as deep value networks do."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Self

import torch
from torch import Tensor
from torch.nn import functional as F

from lossnet.losses.base import EnergyFunction, EnergyLoss
from lossnet.scores import F1, Score
from lossnet.spaces import Prediction

if TYPE_CHECKING:
    from lossnet.settings import Settings

__all__ = ["Regression", "RegressionS"]


@dataclass(frozen=True)
class Regression(EnergyLoss):
    """``BCE(σ(−E(x, ŷ)), s(ŷ, y))`` (SEAL Eq. 7, with ``log(1 − σ)`` where it prints ``1 + σ``).

    Needs a score in [0, 1].  Several candidates are averaged; `RegressionS` proposes several.

    >>> import torch
    >>> from lossnet.spaces import MultiLabel
    >>> prediction = Prediction(MultiLabel(1), torch.tensor([[99.0]]))
    >>> loss = Regression()
    >>> loss(lambda y: 0 * y.sum(-1), torch.ones(1, 1), loss.propose(prediction), prediction)
    tensor([0.6931])
    """

    name: ClassVar[str] = "regression"
    bounded: ClassVar[bool] = True
    score: Score = field(default_factory=F1)

    @classmethod
    def from_settings(cls, settings: Settings, score: Score) -> Self:
        return cls(score)

    def propose(self, prediction: Prediction) -> Tensor:
        return prediction.relaxed.unsqueeze(1)

    def __call__(
        self, energy: EnergyFunction, truth: Tensor, candidates: Tensor, prediction: Prediction
    ) -> Tensor:
        return self.of_candidates(energy, truth, candidates).mean(1)

    def of_candidates(self, energy: EnergyFunction, truth: Tensor, candidates: Tensor) -> Tensor:
        """The loss of each candidate, ``(batch, K)``."""
        target = self.score(candidates, truth)
        return F.binary_cross_entropy_with_logits(-energy(candidates), target, reduction="none")


@dataclass(frozen=True)
class RegressionS(Regression):
    """`Regression` over ``samples`` Gaussian perturbations of the logits, and ``ŷ`` itself (SEAL §2.3).

    >>> import torch
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
        return torch.cat([prediction.relaxed.unsqueeze(1), around], 1)

"""Regression losses: the energy learns the score itself, as deep value networks do."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal, Self

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

    Several candidates' losses are averaged.  The score must be in [0, 1].  A task net descends
    ``−σ(−E(x, ŷ))``, the predicted score, as SEAL's authors train it; with ``term="energy"`` it descends
    ``E(x, ŷ)``, which goes on falling where the score cannot rise.

    >>> from lossnet.spaces import MultiLabel
    >>> prediction = Prediction(MultiLabel(1), torch.tensor([[99.0]]))
    >>> loss = Regression()
    >>> loss(lambda y: 0 * y.sum(-1), torch.ones(1, 1), loss.propose(prediction), prediction)
    tensor([0.6931])
    >>> loss.task_objective(lambda y: 0 * y.sum(-1))(torch.ones(1, 1, 1))
    tensor([[-0.5000]])
    """

    name: ClassVar[str] = "regression"
    bounded: ClassVar[bool] = True
    term: Literal["score", "energy"] = field(default="score", kw_only=True)

    @classmethod
    def from_settings(cls, settings: Settings, score: Score) -> Self:
        return cls(score, term=settings.regression_term)

    def task_objective(self, energy: EnergyFunction) -> EnergyFunction:
        return energy if self.term == "energy" else lambda y: -torch.sigmoid(-energy(y))

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
    """The mean of `Regression` over ``samples`` outputs: ``ŷ`` and Gaussian perturbations of its logits.

    This is SEAL §2.3.

    >>> from lossnet.spaces import MultiLabel
    >>> RegressionS(samples=4).propose(Prediction(MultiLabel(3), torch.zeros(2, 3))).shape
    torch.Size([2, 4, 3])
    """

    name: ClassVar[str] = "regression-s"
    search: ClassVar[tuple[str, ...]] = ("samples", "perturb_std")
    samples: int = 10
    std: float = 1.0

    @classmethod
    def from_settings(cls, settings: Settings, score: Score) -> Self:
        return cls(score, settings.samples, settings.perturb_std, term=settings.regression_term)

    def propose(self, prediction: Prediction) -> Tensor:
        around = prediction.perturb(self.samples - 1, self.std)
        return torch.cat([super().propose(prediction), around], 1)

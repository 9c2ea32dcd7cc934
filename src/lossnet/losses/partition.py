"""Maximum likelihood with a log-partition that is learned beside the energy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Self

from torch import Tensor

from lossnet.losses.base import EnergyFunction, EnergyLoss, with_truth
from lossnet.scores import Score
from lossnet.spaces import Prediction

if TYPE_CHECKING:
    from lossnet.settings import Settings

#: from here on the exponential goes on as a line, so that a candidate whose energy is far too low cannot
#: overflow; where the loss is lowest, candidates have a mean of 1
_LINE = 10.0


@dataclass(frozen=True)
class Partition(EnergyLoss):
    """``E(x, y) + τ(x) + E_P[exp(−E(x, y′) − τ(x)) / P(y′|x)] − 1`` (Sander et al., ICML 2025).

    Over all ``τ`` its lowest value is ``E(x, y) + log Z(x)`` with ``Z(x) = Σ_y exp(−E(x, y))``, the negative
    log-likelihood, at ``τ = log Z``.  The expectation is a mean over ``samples`` from the task net's ``P``.

    Requirements:
        ``τ`` is a part of the energy that is given, ``E + τ``: add a `lossnet.energies.LogPartition` to it.
        On the command line that is done.

    Relations:
        Like `NCE` it learns the data's distribution from samples of the task net; the energy is normalised
        then, ``P(y|x) = exp(−E(x, y) − τ(x))``, where NCE leaves a constant of each input open.  Its gradient
        varies more where samples of the task net miss what the energy wants.

    >>> import torch
    >>> from lossnet.spaces import MultiLabel
    >>> prediction = Prediction(MultiLabel(1), torch.tensor([[0.0]]))
    >>> uniform = lambda y: 0 * y.sum(-1) + torch.tensor(2.0).log()  # −log P of each of two sets
    >>> Partition()(uniform, torch.ones(1, 1), torch.zeros(1, 3, 1), prediction)  # log 2
    tensor([0.6931])
    """

    name: ClassVar[str] = "partition"
    search: ClassVar[tuple[str, ...]] = ("samples",)
    normalised: ClassVar[bool] = True
    samples: int = 20

    @classmethod
    def from_settings(cls, settings: Settings, score: Score) -> Self:
        return cls(settings.samples)

    def propose(self, prediction: Prediction) -> Tensor:
        return prediction.sample(self.samples)

    def __call__(
        self, energy: EnergyFunction, truth: Tensor, candidates: Tensor, prediction: Prediction
    ) -> Tensor:
        energies = energy(with_truth(truth, candidates))
        ratios = -energies[:, 1:] - prediction.log_prob(candidates)
        below = ratios.clamp(max=_LINE).exp()
        return energies[:, 0] + (below * (1 + (ratios - _LINE).clamp_min(0))).mean(1) - 1

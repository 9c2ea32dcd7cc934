"""The loss of a task net: three terms, three weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from lossnet.losses.base import EnergyFunction
from lossnet.losses.fixed import FixedLoss, cross_entropy
from lossnet.scores import F1, Score
from lossnet.spaces import Prediction, Weights, mean


@dataclass(frozen=True)
class TaskLoss:
    """``λ_E · E(x, ŷ) + λ_CE · CE(A(x), y) + λ_S · cost(ŷ, y)`` with ``ŷ = relax(A(x))``, batch mean.

    The first two terms are SEAL Eq. 1; the score term is ours, 0 in the papers.  ``fixed`` takes the
    place of cross-entropy where another fixed loss is wanted.

    >>> import torch
    >>> from lossnet.spaces import MultiLabel
    >>> prediction = Prediction(MultiLabel(2), torch.zeros(1, 2))
    >>> TaskLoss(energy_weight=2.0)(prediction, torch.ones(1, 2), lambda y: y.sum(-1))  # 2·1 + 2·log 2
    tensor(3.3863)
    """

    energy_weight: float = 1.0
    ce_weight: float = 1.0
    score_weight: float = 0.0
    score: Score = field(default_factory=F1)
    fixed: FixedLoss = cross_entropy

    def __call__(
        self,
        prediction: Prediction,
        truth: Tensor | None,
        energy: EnergyFunction | None = None,
        weight: Weights | None = None,
    ) -> Tensor:
        """Return the loss, ``()``; without a truth, that of the energy alone.

        Cross-entropy and cost are those of the units whose truth is known, if the prediction says which.
        ``weight`` is that of each instance in the mean, ``(batch,)``; a mapping has those of each term.
        """
        terms, compared = {}, prediction.where_known()
        if self.ce_weight and truth is not None:
            terms["ce"] = _times(self.ce_weight, self.fixed(compared, truth))
        if energy is not None and self.energy_weight:
            energies = energy(prediction.relaxed.unsqueeze(1)).squeeze(1)
            terms["energy"] = _times(self.energy_weight, energies)
        if self.score_weight and truth is not None:
            cost = self.score.cost(compared.relaxed.unsqueeze(1), truth)
            terms["score"] = _times(self.score_weight, cost.squeeze(1))
        if not terms:
            terms["ce"] = prediction.logits.new_zeros(len(prediction.logits))
        if isinstance(weight, Mapping):
            means = [mean(losses, weight, term) for term, losses in terms.items()]
            return sum(means[1:], means[0])
        first, *others = terms.values()
        return mean(sum(others, first), weight)


def _times(weight: float, losses: Tensor) -> Tensor:
    return losses if weight == 1 else weight * losses

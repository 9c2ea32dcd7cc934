"""Losses without a learned part: what to try first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Self

import torch
from torch import Tensor
from torch.nn import functional as F

from lossnet.losses.contrastive import Ranking
from lossnet.spaces import Prediction

if TYPE_CHECKING:
    from lossnet.settings import Settings

#: ``(prediction, truth) ↦ (batch,)``; one with an attribute ``binary`` that is true is for binary units only
FixedLoss = Callable[[Prediction, Tensor], Tensor]


def cross_entropy(prediction: Prediction, truth: Tensor) -> Tensor:
    """Return cross-entropy summed over labels, tokens or pixels, ``(batch,)``.

    >>> from lossnet.spaces import MultiLabel
    >>> cross_entropy(Prediction(MultiLabel(2), torch.zeros(1, 2)), torch.ones(1, 2))
    tensor([1.3863])
    """
    return prediction.cross_entropy(truth)


@dataclass(frozen=True)
class Asymmetric:
    """Asymmetric loss for binary units (Ridnik et al. 2021, Eq. 7), summed, ``(batch,)``.

    ``−y (1 − p)^γ₊ log p − (1 − y) q^γ₋ log(1 − q)`` with ``q = [p − shift]₊``: easy negatives fade out.

    >>> from lossnet.spaces import MultiLabel
    >>> prediction = Prediction(MultiLabel(2), torch.tensor([[0.0, -4.0]]))
    >>> Asymmetric()(prediction, torch.tensor([[1.0, 0.0]]))
    tensor([0.3466])
    """

    name: ClassVar[str] = "asymmetric"
    binary: ClassVar[bool] = True
    positive_focus: float = 1.0
    negative_focus: float = 4.0
    shift: float = 0.05

    def __call__(self, prediction: Prediction, truth: Tensor) -> Tensor:
        logits = prediction.logits
        # Powers of exactly 0 have no finite gradient for a focus below 1.
        missed = torch.sigmoid(-logits).clamp(min=1e-8)
        shifted = (torch.sigmoid(logits) - self.shift).clamp(min=1e-8)
        log_rest = torch.log1p(-shifted) if self.shift else F.logsigmoid(-logits)
        positive = missed**self.positive_focus * F.logsigmoid(logits)
        negative = shifted**self.negative_focus * log_rest * (shifted > 1e-8)
        losses = -torch.where(truth > 0, positive, negative)
        if prediction.mask is not None:
            losses = losses * prediction.mask
        return losses.flatten(1).sum(1)


@dataclass(frozen=True)
class Dice:
    """Soft Dice cost of binary units, ``1 − (2 Σ ŷy + s) / (Σ ŷ + Σ y + s)`` with ``s = smoothing``.

    One number in [0, 1] for each image, ``(batch,)``, not a sum over pixels as cross-entropy is: `F1`'s cost
    but for the smoothing, which makes an empty prediction of an empty truth cost nothing.

    >>> from lossnet.spaces import Mask
    >>> prediction = Prediction(Mask(), torch.tensor([[[99.0, 99.0]]]))
    >>> Dice(smoothing=0)(prediction, torch.tensor([[[1.0, 0.0]]]))
    tensor([0.3333])
    """

    name: ClassVar[str] = "dice"
    binary: ClassVar[bool] = True
    smoothing: float = 1.0

    def __call__(self, prediction: Prediction, truth: Tensor) -> Tensor:
        relaxed, truth = prediction.relaxed, _real(prediction, truth)
        overlap = (relaxed * truth).flatten(1).sum(1)
        total = (relaxed + truth).flatten(1).sum(1)
        return 1 - (2 * overlap + self.smoothing) / (total + self.smoothing)


@dataclass(frozen=True)
class Lovasz:
    """Binary Lovász hinge (Berman et al. 2018), a convex surrogate of ``1 − IoU``, ``(batch,)``.

    ``Σ_i m_i (Δ_i − Δ_{i−1})`` over the hinge errors ``m_i = [1 − (2 y_i − 1) l_i]₊`` in descending order,
    where ``Δ_i`` is ``1 − IoU`` if just the ``i`` worst pixels were wrong: the Lovász extension of the
    Jaccard loss.  Logits of ±1 give twice ``1 − IoU``.  One number for each image, not a sum over pixels
    as cross-entropy is; it is piecewise linear in the logits, so that it has no curvature.

    >>> from lossnet.spaces import Mask
    >>> prediction = Prediction(Mask(), torch.tensor([[[1.0, 1.0, -1.0]]]))
    >>> Lovasz()(prediction, torch.tensor([[[1.0, 0.0, 0.0]]]))
    tensor([1.])
    """

    name: ClassVar[str] = "lovasz"
    binary: ClassVar[bool] = True

    def __call__(self, prediction: Prediction, truth: Tensor) -> Tensor:
        truth = _real(prediction, truth)
        errors = _real(prediction, F.relu(1 - (2 * truth - 1) * prediction.logits)).flatten(1)
        errors, order = errors.sort(dim=1, descending=True)  # padding comes last, with errors of 0
        missed = truth.flatten(1).gather(1, order).cumsum(1)
        added = torch.arange(1, errors.shape[1] + 1, device=errors.device) - missed
        total = truth.flatten(1).sum(1, keepdim=True)
        jaccard = 1 - (total - missed) / (total + added)
        steps = torch.diff(jaccard, dim=1, prepend=torch.zeros_like(jaccard[:, :1]))
        return (errors * steps).sum(1)


@dataclass(frozen=True)
class DirectRanking:
    """`Ranking` of the task net's own samples by itself, ``E(x, y) = −log P(y|x)``, ``(batch,)``.

    ``−log (P(y|x) / Σ_k P(yᵏ|x))`` over the truth and ``samples`` draws from ``P(·|x)``, held fixed: what is
    left of SEAL's ranking loss without an energy network (an ablation of SEAL's ICLR version).  A sample that
    equals the truth counts against it: the loss of a network that is sure and right is ``log(1 + samples)``.

    >>> from lossnet.spaces import MultiLabel
    >>> prediction = Prediction(MultiLabel(2), torch.zeros(1, 2))
    >>> DirectRanking(samples=3)(prediction, torch.tensor([[1.0, 0.0]]))  # all sets are as likely: log 4
    tensor([1.3863])
    """

    name: ClassVar[str] = "direct-ranking"
    samples: int = 20

    def configured(self, settings: Settings) -> Self:
        """Return the loss that settings describe."""
        return replace(self, samples=settings.samples)

    def __call__(self, prediction: Prediction, truth: Tensor) -> Tensor:
        ranking = Ranking(self.samples)
        candidates = ranking.propose(prediction)
        return ranking(lambda y: -prediction.log_prob(y), truth, candidates, prediction)


def _real(prediction: Prediction, values: Tensor) -> Tensor:
    return values if prediction.mask is None else torch.where(prediction.mask.bool(), values, 0)

"""Losses without a learned part: what a practitioner would try first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from lossnet.spaces import Prediction

__all__ = ["Asymmetric", "FixedLoss", "cross_entropy"]

#: ``(prediction, truth) ↦ (batch,)``
FixedLoss = Callable[[Prediction, Tensor], Tensor]


def cross_entropy(prediction: Prediction, truth: Tensor) -> Tensor:
    """Cross-entropy summed over labels, tokens or pixels, ``(batch,)``.

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

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
        probability = torch.sigmoid(prediction.logits)
        shifted = (probability - self.shift).clamp(min=0)
        positive = (1 - probability) ** self.positive_focus * F.logsigmoid(prediction.logits)
        negative = shifted**self.negative_focus * torch.log1p(-shifted)
        losses = -(truth * positive + (1 - truth) * negative)
        if prediction.mask is not None:
            losses = losses * prediction.mask
        return losses.flatten(1).sum(1)

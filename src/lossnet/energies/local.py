"""The local energy: every label alone, given the input."""

from __future__ import annotations

from torch import Tensor

from lossnet import ops
from lossnet.energies.base import Term
from lossnet.nets.layers import linear

__all__ = ["Local"]


class Local(Term):
    """``Σ_i y_i b_iᵀ T(x)`` (SEAL Eq. 2, first part).

    >>> import torch
    >>> term = Local(features=2, labels=3)
    >>> term.evaluate(term.prepare(torch.ones(1, 2)), torch.zeros(1, 4, 3))
    tensor([[0., 0., 0., 0.]], grad_fn=...)
    """

    def __init__(self, features: int, labels: int) -> None:
        super().__init__()
        self.weights = linear(features, labels, bias=False)

    def prepare(self, features: Tensor) -> Tensor:
        """Energy of each label alone, ``(batch, labels)``."""
        prepared: Tensor = self.weights(features)
        return prepared

    def evaluate(self, prepared: Tensor, y: Tensor) -> Tensor:
        """Energies ``(batch, K)`` of candidates ``(batch, K, labels)``."""
        return ops.weighted_sum(y, prepared)

    def unary_logits(self, features: Tensor) -> Tensor:
        """Logits of ``P(y_i = 1) ∝ exp(−E_local)``, ``(batch, labels)``."""
        return -self.prepare(features)

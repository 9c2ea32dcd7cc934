"""Terms of label sets ``(batch, K, labels)``: every label given the input, and which belong together."""

from __future__ import annotations

from torch import Tensor

from lossnet import ops
from lossnet.energies.base import Term
from lossnet.nets.layers import InputLayer, linear


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
        """Return the energy of each label alone, ``(batch, labels)``."""
        prepared: Tensor = self.weights(features)
        return prepared

    def evaluate(self, prepared: Tensor, y: Tensor) -> Tensor:
        return ops.weighted_sum(y, prepared)

    def unary_logits(self, features: Tensor) -> Tensor:
        """Return logits of ``P(y_i = 1) ∝ exp(−E_local)``, ``(batch, labels)``."""
        return -self.prepare(features)


class LabelInteraction(Term):
    """``vᵀ softplus(M y)`` (SEAL Eq. 2, second part) or, given ``features``, ``vᵀ softplus(M y + U T(x))``.

    The papers' global term never sees the input; the conditioned one is ours.  With ``bias``, ``M y + b``
    takes the place of ``M y``, as SEAL's authors have it.

    >>> import torch
    >>> term = LabelInteraction(labels=3, hidden=5)
    >>> term.evaluate(term.prepare(torch.ones(2, 4)), torch.zeros(2, 6, 3)).shape
    torch.Size([2, 6])
    """

    def __init__(self, labels: int, hidden: int, features: int | None = None, bias: bool = False) -> None:
        super().__init__()
        self.mixing = InputLayer(labels, hidden, bias)
        self.weights = linear(hidden, 1, bias=False)
        self.condition = None if features is None else linear(features, hidden, bias=False)

    def prepare(self, features: Tensor) -> Tensor | None:
        """Return ``U T(x)`` as ``(batch, 1, hidden)``, or None without it."""
        if self.condition is None:
            return None
        shift: Tensor = self.condition(features)
        return shift.unsqueeze(1)

    def evaluate(self, prepared: Tensor | None, y: Tensor) -> Tensor:
        mixing, weights = self.mixing, self.weights.weight
        return ops.label_interaction(
            y, mixing.weight, weights, shift=prepared, bias=mixing.bias, training=self.training
        )

"""The global energy of a label set: which labels belong together."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from lossnet import kernels
from lossnet.energies.base import Term
from lossnet.nets.layers import InputLayer, linear
from lossnet.sparse import distinct

__all__ = ["LabelInteraction"]


class LabelInteraction(Term):
    """``vᵀ softplus(M y)`` (SEAL Eq. 2, second part) or, given ``features``, ``vᵀ softplus(M y + U T(x))``.

    The papers' global term never sees the input; the conditioned one is ours.

    >>> import torch
    >>> term = LabelInteraction(labels=3, hidden=5)
    >>> term.evaluate(term.prepare(torch.ones(2, 4)), torch.zeros(2, 6, 3)).shape
    torch.Size([2, 6])
    """

    def __init__(self, labels: int, hidden: int, features: int | None = None) -> None:
        super().__init__()
        self.mixing = InputLayer(labels, hidden, bias=False)
        self.weights = linear(hidden, 1, bias=False)
        self.condition = None if features is None else linear(features, hidden, bias=False)

    def prepare(self, features: Tensor) -> Tensor | None:
        """``U T(x)`` as ``(batch, 1, hidden)``, or nothing."""
        if self.condition is None:
            return None
        shift: Tensor = self.condition(features)
        return shift.unsqueeze(1)

    def evaluate(self, prepared: Tensor | None, y: Tensor) -> Tensor:
        """Energies ``(batch, K)`` of candidates ``(batch, K, labels)``."""
        if self.training and prepared is None and isinstance(self.mixing, InputLayer):
            # Equal sets have equal energies.  (Of stacked layers, each would mix them in its own way.)
            different, places = distinct(y)
            if places is not None:
                return self._mixed(self.mixing(different)).index_select(0, places).view(y.shape[:-1])
        if prepared is None:
            found = kernels.interact(y, self.mixing.weight, self.weights.weight)
            if found is not None:
                return found
        mixed = self.mixing(y)
        return self._mixed(mixed if prepared is None else mixed + prepared)

    def _mixed(self, mixed: Tensor) -> Tensor:
        """Energies ``(…)`` of what is made of candidates, ``(…, hidden)``."""
        found = kernels.read_out(mixed, self.weights.weight)
        if found is not None:
            return found
        energies: Tensor = self.weights(F.softplus(mixed))
        return energies.squeeze(-1)

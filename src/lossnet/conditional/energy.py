"""The residual energy of label sets, with what is known clamped."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from lossnet.conditional.base import Conditional
from lossnet.energies import LabelResidual
from lossnet.gibbs import Gibbs
from lossnet.trees import Tree

#: probabilities are kept this far from 0 and 1 before their logits are taken
_NEAREST = 1e-6


def logits_of(relaxed: Tensor) -> Tensor:
    """Return the logits of probabilities, which are finite."""
    return torch.logit(relaxed, _NEAREST)


class GivenOthers(nn.Module):
    """Logits of labels given the task net's logits and all other labels, ``(z, y)``: ``(batch, labels)``.

    Its cross-entropy is the energy's pseudo-likelihood (Besag, 1975).

    >>> GivenOthers(LabelResidual(2, rank=1))((torch.tensor([[1.0, -1.0]]), torch.ones(1, 2)))
    tensor([[ 1., -1.]], grad_fn=<AddBackward0>)
    """

    def __init__(self, energy: LabelResidual) -> None:
        super().__init__()
        self.energy = energy

    def forward(self, x: tuple[Tensor, Tensor]) -> Tensor:
        logits, y = x
        return logits + self.energy.gains(self.energy.encode(logits), y.unsqueeze(1)).squeeze(1)


class EnergyConditional(Conditional):
    """``P(y | x) ∝ P_task(y | x) · exp(−R(x, y))`` as an engine, by Gibbs sampling.

    Args:
        energy: ``R``, which reads the task net's calibrated logits.
        gibbs: how to sample.
    """

    engine: ClassVar[str] = "energy"

    def __init__(self, energy: LabelResidual, gibbs: Gibbs | None = None) -> None:
        super().__init__()
        self.energy, self.gibbs = energy, gibbs or Gibbs()

    def marginals(self, x: Tree, relaxed: Tensor, known: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.gibbs.marginals(self.energy, logits_of(relaxed), known.to(relaxed.dtype))

    def sample(self, relaxed: Tensor, known: Tensor, count: int, seed: int = 0) -> Tensor:
        """Return ``count`` sets of each instance ``(batch, count, labels)``."""
        return self.gibbs.sample(self.energy, logits_of(relaxed), known.to(relaxed.dtype), count, seed)

    def log_prob(self, relaxed: Tensor, known: Tensor, y: Tensor, seed: int = 0) -> tuple[Tensor, Tensor]:
        """Return estimates of ``log P`` of sets ``(batch, K, labels)``, and their standard errors."""
        known = known.to(relaxed.dtype)
        return self.gibbs.log_prob(self.energy, logits_of(relaxed), known, y.to(relaxed.dtype), seed=seed)

    def likeliest(self, relaxed: Tensor, known: Tensor) -> Tensor:
        """Return the likeliest set of each instance ``(batch, labels)``, of those searched."""
        return self.gibbs.likeliest(self.energy, logits_of(relaxed), known.to(relaxed.dtype))

    def doubts(self, relaxed: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return ``log P(y′) − log P(y)`` ``(batch,)`` of sets ``y``, and the likelier sets ``y′``."""
        logits, y = logits_of(relaxed), y.to(relaxed.dtype)
        likelier = self.gibbs.likeliest(self.energy, logits, torch.full_like(logits, torch.nan))
        both = self.gibbs.heights(self.energy, logits, torch.stack([likelier, y], 1))
        return both[:, 0] - both[:, 1], likelier

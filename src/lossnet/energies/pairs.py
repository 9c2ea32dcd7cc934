"""Potentials of pairs of labels that depend on the input: the structured part of a graph's energy."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lossnet.energies.base import Energy
from lossnet.nets import linear
from lossnet.trees import Tree


class Pairs(Energy):
    """``Σ_{i<j} θ_ij(x) y_i y_j`` with ``θ_ij(x) = Σ_h d_h(x) U_hi U_hj`` (Graber & Schwing 2019).

    A Potts potential of two labels, ``θ_ij · [y_i = y_j]``, differs from that by what each label costs alone,
    which `Local` learns.  Every two labels are neighbours; a matrix of them for each input would have too
    many weights, so theirs is of a ``rank``.  It starts at 0.

    Args:
        encoder: gives features of whole instances, ``(batch, encoder.width)``.
        labels: their number.
        rank: of the matrix of potentials.

    >>> from lossnet.nets import MLP
    >>> energy = Pairs(MLP(4, hidden=8, layers=1), labels=3, rank=2)
    >>> energy.encode(torch.zeros(2, 4)).shape, energy(torch.zeros(2, 4), torch.ones(2, 7, 3)).shape
    (torch.Size([2, 3, 3]), torch.Size([2, 7]))
    """

    def __init__(self, encoder: nn.Module, labels: int, rank: int = 32) -> None:
        super().__init__()
        self.encoder = encoder
        self.strengths = linear(encoder.width, rank)  # type: ignore[arg-type]
        nn.init.zeros_(self.strengths.weight)
        self.factors = nn.Parameter(rank**-0.25 * torch.randn(rank, labels))

    def encode(self, x: Tree) -> Tensor:
        """Return the potentials ``θ`` ``(batch, labels, labels)``, symmetric, with zeros in the diagonal."""
        strengths = self.strengths(self.encoder(x))
        potentials: Tensor = (strengths.unsqueeze(1) * self.factors.T) @ self.factors
        return potentials * (1 - torch.eye(potentials.shape[-1], device=potentials.device))

    def evaluate(self, encoded: Tensor, y: Tensor) -> Tensor:
        return ((y @ encoded) * y).sum(-1) / 2

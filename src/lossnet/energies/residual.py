"""What label sets have beyond a network's own probabilities: an energy to multiply them with."""

from __future__ import annotations

import copy
from typing import Any, Self

import torch
from torch import Tensor, nn

from lossnet.energies.base import Energy


class LabelResidual(Energy):
    """``R(x, y)`` of ``P(y | x) ∝ P_task(y | x) · exp(−R(x, y))``, where ``x`` are the task net's logits.

    ``−R = yᵀ(A p + c) + Σ_{i≠j} y_i y_j Σ_h d_h U_hi U_hj + a_{|y|} + b (|y| − μ)²`` with ``p = σ(x)`` and
    ``μ = Σ_i p_i``: corrections of each label by the probabilities of all, pairs of labels, and how many
    there are.  It starts at 0, where ``P`` is the task net's.  With a ``rank`` of 0 only the corrections are
    left, which keep labels independent given the input.

    Args:
        labels: their number.
        rank: of the matrix of pairs.

    >>> energy = LabelResidual(labels=3, rank=2)
    >>> energy(torch.zeros(2, 3), torch.ones(2, 4, 3)).shape
    torch.Size([2, 4])
    """

    def __init__(self, labels: int, rank: int = 32) -> None:
        super().__init__()
        self.correction = nn.Linear(labels, labels)
        nn.init.zeros_(self.correction.weight)
        nn.init.zeros_(self.correction.bias)
        self.rank = rank
        if rank:
            self.factors = nn.Parameter(0.1 * torch.randn(rank, labels))
            self.strengths = nn.Parameter(torch.zeros(rank))
            self.counts = nn.Parameter(torch.zeros(labels + 1))
            self.spread = nn.Parameter(torch.zeros(()))

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        chances = x.sigmoid()
        return self.correction(chances).unsqueeze(1), chances.sum(-1, keepdim=True)

    def evaluate(self, encoded: tuple[Tensor, Tensor], y: Tensor) -> Tensor:
        correction, expected = encoded
        gain = (y * correction).sum(-1)
        if not self.rank:
            return -gain
        pairs = (y @ self.factors.T) ** 2 - (y * y) @ (self.factors * self.factors).T
        count = y.sum(-1)
        # Of relaxed outputs, the count lies between two whole numbers, and so does its energy.
        below = count.detach().floor().clamp(0, len(self.counts) - 2).long()
        of_count = torch.lerp(self.counts[below], self.counts[below + 1], count - below)
        return -(gain + pairs @ self.strengths + of_count + self.spread * (count - expected) ** 2)

    def gains(self, encoded: tuple[Tensor, Tensor], y: Tensor) -> Tensor:
        """Return what each label adds to ``−R`` if the others are as in ``y``, ``(batch, K, labels)``.

        Under ``P`` a label's log odds given all others are the task net's logit and this gain.

        >>> energy = LabelResidual(labels=3, rank=2)
        >>> energy.gains(energy.encode(torch.zeros(2, 3)), torch.ones(2, 4, 3)).shape
        torch.Size([2, 4, 3])
        """
        correction, expected = encoded
        if not self.rank:
            return correction.expand_as(y)
        weighted = self.strengths.unsqueeze(1) * self.factors
        pairs = 2 * ((y @ self.factors.T) @ weighted - y * (self.factors * weighted).sum(0))
        others = y.sum(-1, keepdim=True) - y
        steps = self.counts.diff()[others.detach().round().long().clamp(0, len(self.counts) - 2)]
        return correction + pairs + steps + self.spread * (2 * (others - expected.unsqueeze(1)) + 1)


class OnLogits(Energy):
    """An energy that reads the logits of a trained network in place of inputs, such as a `LabelResidual`.

    It has no classifier of its own to learn, and only says what label sets have beyond the network's
    probabilities.  The network is copied and held fixed.

    Args:
        net: from inputs to logits.
        energy: of logits and outputs.

    >>> net = nn.Linear(4, 3)
    >>> energy = OnLogits(net, LabelResidual(labels=3, rank=2))
    >>> energy(torch.zeros(2, 4), torch.ones(2, 7, 3)).shape
    torch.Size([2, 7])
    """

    def __init__(self, net: nn.Module, energy: Energy) -> None:
        super().__init__()
        self.net, self.energy = copy.deepcopy(net).requires_grad_(False).eval(), energy

    def encode(self, x: Any) -> Any:
        with torch.no_grad():
            logits = self.net(x)
        return self.energy.encode(logits)

    def evaluate(self, encoded: Any, y: Tensor) -> Tensor:
        return self.energy.evaluate(encoded, y)

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        self.net.eval()
        return self
